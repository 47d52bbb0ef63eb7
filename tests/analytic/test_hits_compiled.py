"""What requests find, compiled for many side by side, against the same one by one in Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import bdtrc

from smetric_model.analytic.cluster_tiers import turns_back_weights
from smetric_model.analytic.session_reuse import TURNS_BACK
from smetric_model.analytic.stay_rule import HOLDERS, LEADS, Pace, StayRule
from smetric_model.routing.ties import TieBreaking, holders_needed
from tests.analytic.test_cluster_tiers import DEMAND, FOREVER, LOCAL

REUSE = DEMAND.session_reuse
PACE = Pace(2.0, 0.03)
EDGES = [1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 512]
GRID = np.linspace(0.0, 1.0, LEADS)
RULES = {
    "blind": StayRule(0.2, stay_without=0.2),
    "smetric": StayRule(0.9, 0.5, True, True, stay_without=0.1, older_wins=0.4),
    "ratio alone": StayRule(0.9, least_hit_ratio=0.7),
    "bailian": StayRule(
        0.8,
        needs_own=True,
        stay_without=0.1,
        seeks_hits=True,
        stay_of_leads=0.5 + 0.5 * GRID,
        stay_above_leads=0.7 + 0.3 * GRID,
        lead="share",
        home_wins=1.0 / np.geomspace(1.0, 9.0, HOLDERS) ** 0.7,
    ),
}


class OneByOne:
    """A request at a time, an instance at a time."""

    def __init__(self, rule, hits, instances, own_rps, window, mean_stay):
        self.rule, self.instances, self.window = rule, instances, window
        self.nodes, self.shares, self.ages = hits.spread
        self.inflow = own_rps * hits.stored_tokens
        self.mean_stay = mean_stay
        running = PACE.first_token_s + PACE.per_output_token_s * LOCAL.mean_output
        again = mean_stay * LOCAL.follow_up_ratio
        kept = np.maximum(np.minimum(self.ages + running, np.mean(window)) - running, 0.0)
        visit = again * np.interp(kept, LOCAL.ages, LOCAL.think_within) + (1 - again) * kept
        self.seen_s, self.rates = running + visit, own_rps * LOCAL.part_ratio
        holders = np.geomspace(1.0, max(instances, 2), HOLDERS)
        self.wins = 1.0 / holders if rule.home_wins is None else rule.home_wins

    def in_run(self, gap):
        start, end = self.window
        return min(max((end - gap) / (end - start), 0.0), 1.0)

    def chance(self, row, per_s):
        """How much of its shared prefix is touched so often, in a time."""
        mine = np.flatnonzero(REUSE.part_request == LOCAL.rows[row])
        shares = REUSE.part_tokens[mine] / LOCAL.shared[row]
        return float(shares @ -np.expm1(-self.rates[REUSE.part[mine]] * per_s))

    def held_by_all(self, chance):
        needed = holders_needed(self.instances, TieBreaking.shared_by_ratio)
        at = np.linspace(0.0, 1.0, 65)
        law = bdtrc(max(needed - 2, -1), max(self.instances - 1, 1), at)
        return float(np.interp(chance, at, law))

    def elsewhere(self, row, z):
        """Older copies where it lands, and P(a copy as long is of the last turn elsewhere)."""
        rule, rank = self.rule, LOCAL.rows[row]
        stay, above = self.stay(row)
        tokens, tie, last = 0.0, 0.0, 1.0
        law = turns_back_weights(self.mean_stay, self.instances)[1:] / max(1 - self.mean_stay, 1e-9)
        for d in range(1, len(TURNS_BACK)):
            if LOCAL.own[d, row] <= 0:
                break
            gap = (TURNS_BACK[d] - 1) * PACE.first_token_s + LOCAL.idle[d, row]
            gap += REUSE.between_tokens[d, rank] * PACE.per_output_token_s
            until = above ** (EDGES[d] - 1)
            if gap <= self.ages[z]:
                ran = self.mean_stay ** (EDGES[d - 1] - 1) - self.mean_stay ** (EDGES[d] - 1)
                weight = ran if rule.seeks_hits else law[d - 1]
                tokens += weight * LOCAL.private[d, row] * self.in_run(gap)
                if rule.needs_own and LOCAL.own[d, row] >= LOCAL.own[0, row] - LOCAL.cache_block:
                    tie += (last - until) * self.in_run(gap)
            last = until
        return tokens, tie * rule.older_wins * stay

    def stay(self, row):
        if self.rule.stay_of_leads is None:
            return self.rule.stay, self.rule.stay
        lead = LOCAL.leads(self.rule)[row]
        cells = np.arange(LEADS)
        above = np.exp(np.interp(lead, cells, np.log(self.rule.stay_above_leads)))
        return np.interp(lead, cells, self.rule.stay_of_leads), above

    def at(self, row, z):
        """What a request finds on instances of one load.

        P(stays), P(and finds all), hits of others that stay and that land elsewhere (not divided
        by their probabilities), P(refused), P(goes to a copy as long), P(leaves for a copy).
        """
        rule, shared, longest = self.rule, LOCAL.shared[row], LOCAL.longest[row]
        own, private = LOCAL.own[0, row], LOCAL.private[0, row]
        chance = lands = self.chance(row, self.nodes[z] * self.seen_s[z]) if shared else 0.0
        if rule.seeks_hits and shared:
            lands = self.chance(row, self.instances * self.seen_s[z])
        older, moved = self.elsewhere(row, z)
        landing = shared * lands + older
        if not LOCAL.has_home[row]:
            return np.array([0.0, 0.0, 0.0, min(landing, longest), 0.0, 0.0, 0.0])
        left = 0.0
        if self.ages[z] > 0:
            drain_s = max(private / max(self.nodes[z] * self.inflow, 1e-9), 1e-9)
            left = min(max(0.5 - (LOCAL.idle[0, row] - self.ages[z]) / drain_s, 0.0), 1.0)
        seen = self.in_run(LOCAL.idle[0, row])
        whole = seen if left == 1 else 0.0
        left *= seen
        prefix = min(own, shared)
        home = min(private * left + prefix * (1.0 if left > 0 else chance), longest)
        common = shared if rule.subtract_shared and chance >= 0.9 else 0.0
        keeps, adrift = True, 0.0
        if rule.least_hit_ratio is not None:
            expected = max(LOCAL.expected[row] - common, 0.0)
            keeps = home - common > rule.least_hit_ratio * expected
        if keeps and rule.needs_own and private * left <= LOCAL.block:
            keeps = False
            adrift = 1.0 - self.held_by_all(chance) if shared > 0 else 0.0
        if self.instances == 1:
            stays, moved, adrift = 1.0, 0.0, 0.0
        elif keeps:
            moved = moved if left > 0 else 0.0
            stays = self.stay(row)[0] - moved
        else:
            stays, moved = rule.stay_without, 0.0
            if left > 0:
                holders = 1.0 + (self.instances - 1.0) * chance
                place = np.log(holders) / np.log(max(self.instances, 2)) * (HOLDERS - 1)
                wins = np.interp(place, np.arange(HOLDERS), self.wins)
                stays += adrift * (wins - stays)
            landing += adrift * max(shared - landing, 0.0)
        away = max(1.0 - stays - moved, 0.0)
        sought = away * self.stay(row)[0] * min(older / max(private, 1e-9), 1.0) * keeps
        part = stays * max(home - whole * min(private + prefix, longest), 0.0)
        landed = away * min(landing, longest) + moved * home
        return np.array([stays, stays * whole, part, landed, 0.0 if keeps else 1.0, moved, sought])

    def of(self, row):
        return sum(share * self.at(row, z) for z, share in enumerate(self.shares))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("instances", [1, 2, 32])
@pytest.mark.parametrize("window", [FOREVER, (20.0, 140.0)])
def test_lanes_of_requests_are_requests_one_by_one(name, instances, window):
    rule, rate = RULES[name], 0.25 * instances
    hits = LOCAL.hits(rule, rate, instances, 40_000.0, window, PACE)
    # the last look at the tiers assumed what the one before found
    again = LOCAL.hits(rule, rate, instances, 40_000.0, window, PACE, hits, most=1)
    plain = OneByOne(rule, again, instances, rate / instances, window, hits.mean_stay)
    rows = np.arange(0, LOCAL.prompt.size, 37)
    stays, whole, part, landed, refused, moved, sought = np.array([plain.of(row) for row in rows]).T
    assert again.stay[rows] == pytest.approx(stays, rel=1e-9, abs=1e-12)
    assert again.whole[rows] == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert again.refused_each[rows] == pytest.approx(refused, rel=1e-9, abs=1e-12)
    longest = LOCAL.longest[rows]
    part = np.minimum(part / np.maximum(stays - whole, 1e-9), longest)
    landed = np.minimum(landed / np.maximum(1.0 - stays, 1e-9), longest)
    weighed = (stays - whole) * part, (1.0 - stays) * landed
    assert (again.stay - again.whole)[rows] * again.part_tokens[rows] == pytest.approx(
        weighed[0], rel=1e-8, abs=1e-4
    )
    assert (1.0 - again.stay)[rows] * again.landed_tokens[rows] == pytest.approx(
        weighed[1], rel=1e-8, abs=1e-4
    )
    total = whole * again.whole_tokens[rows] + weighed[0] + weighed[1]
    assert again.tokens[rows] == pytest.approx(total, rel=1e-8, abs=1e-3)
    alone = replace(again, mean_stay=hits.mean_stay)
    everyone = LOCAL.stays_alone(rule, alone, instances, rate / instances, window, PACE)
    assert everyone[0] == pytest.approx(again.stay, rel=1e-12, abs=1e-12)
    assert everyone[1][rows] == pytest.approx(moved, rel=1e-9, abs=1e-12)
    assert (moved.max() > 0) == (rule.needs_own and instances > 1)
    if rule.seeks_hits:
        assert everyone[2][rows] == pytest.approx(sought, rel=1e-9, abs=1e-12)
        assert (sought.max() > 0) == (instances > 1)


def test_means_are_those_of_the_requests():
    hits = LOCAL.hits(RULES["smetric"], 8.0, 32, 40_000.0, FOREVER, PACE)
    home = LOCAL.has_home
    assert hits.mean_stay == pytest.approx(hits.stay[home].mean())
    assert hits.refused == pytest.approx(hits.refused_each[home].mean())
    assert 0 < hits.adrift <= hits.refused
    stored = LOCAL.mean_private - (hits.tokens - LOCAL.shared).mean()
    assert hits.inflow_tokens == pytest.approx(max(stored, 1.0))
