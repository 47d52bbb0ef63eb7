"""Compiled kernels of the generator: prompts turn by turn, and the radix tree they make."""

from __future__ import annotations

from numba import njit

__all__ = ["evolve", "grow_tree", "mark_common", "merge_chains"]

#: codes of ``trigger``
USER, AGENT, COMPACTION = 0, 1, 2


@njit(cache=True)
def evolve(  # type: ignore[no-untyped-def]
    offsets,
    prefix,
    context,
    first,
    new,
    edit,
    rewrite_ratio,
    compaction_ratio,
    kept_ratio,
    replaced_ratio,
    answer_kept_ratio,
    instruction,
    summary,
    restored,
    limit,
    output,
    trigger,
    prompt,
    keep,
):
    """Prompt of every turn and how much of it the session (or its parent) had before.

    ``output`` and ``trigger`` change where a turn turns out to compact.
    """
    for session in range(offsets.size - 1):
        compacted = False
        fixed = context[session]  # what no rewrite touches: shared prefix, inherited context
        for turn in range(offsets[session], offsets[session + 1]):
            if turn == offsets[session]:
                held = min(context[session], limit[session])
                base = held
                added = first[session]
            elif compacted:
                held = prefix[session]
                fixed = held
                base = held + output[turn - 1] + restored[turn]
                added = new[turn]
            else:
                before = prompt[turn - 1]
                held = before
                base = before
                if edit[turn] < rewrite_ratio[session]:
                    history = max(before - fixed, 0)
                    stays = int(history * kept_ratio[turn])
                    held = before - history + stays
                    base = held + round((history - stays) * replaced_ratio)
                base += round(output[turn - 1] * answer_kept_ratio)
                added = new[turn]
            compacted = False
            if turn > offsets[session]:
                full = base + added > limit[session]
                wanted = edit[turn] >= 1.0 - compaction_ratio
                if full or wanted:
                    compacted = True
                    added = instruction
                    output[turn] = summary[turn]
                    trigger[turn] = COMPACTION
            prompt[turn] = max(min(base + added, limit[session]), 1)
            keep[turn] = min(held, prompt[turn])


@njit(cache=True)
def grow_tree(  # type: ignore[no-untyped-def]
    offsets,
    parent_row,
    origin,
    keep_blocks,
    blocks,
    parent,
    start,
    end,
    has_child,
    nodes,
    leaf,
):
    """Insert the sessions' prompts, parents before the sessions they spawn; returns the nodes used.

    A turn continues the path of the turn before (the first: of the turn that spawned the session,
    or of ``origin``, the node of the shared prefix) from depth ``keep_blocks`` on with blocks of
    its own.  A split keeps the number of the *lower* part, so that a leaf noted earlier is found
    again by walking up.
    """
    for session in range(offsets.size - 1):
        node = origin[session] if parent_row[session] < 0 else leaf[parent_row[session]]
        for turn in range(offsets[session], offsets[session + 1]):
            depth = keep_blocks[turn]
            while parent[node] >= 0 and start[node] >= depth:
                node = parent[node]
            if blocks[turn] > depth:
                if end[node] > depth and parent[node] >= 0:
                    upper = nodes
                    nodes += 1
                    parent[upper] = parent[node]
                    start[upper] = start[node]
                    end[upper] = depth
                    has_child[upper] = True
                    parent[node] = upper
                    start[node] = depth
                    node = upper
                if parent[node] < 0 or has_child[node]:
                    has_child[node] = True
                    parent[nodes] = node
                    start[nodes] = depth
                    end[nodes] = blocks[turn]
                    has_child[nodes] = False
                    node = nodes
                    nodes += 1
                else:
                    end[node] = blocks[turn]
            leaf[turn] = node
    return nodes


@njit(cache=True)
def merge_chains(parent, start, leaf, blocks, used, stands_for, top):  # type: ignore[no-untyped-def]
    """Trim segments to what the requests touch, and join those that do not part any more.

    Parents come before children.  On return ``used`` is the depth touched (``start`` or less: not
    at all), ``stands_for`` the segment that takes a segment's place, and ``top`` of such a segment
    the uppermost one it takes in.
    """
    nodes = parent.size
    children = parent.copy()  # here: number of children used
    for node in range(nodes):
        used[node] = -1
        children[node] = 0
        stands_for[node] = node
        top[node] = node
    for request in range(leaf.size):
        used[leaf[request]] = max(used[leaf[request]], blocks[request])
    for node in range(nodes - 1, -1, -1):
        above = parent[node]
        if above < 0 or used[node] <= start[node]:
            continue
        children[above] += 1
        used[above] = max(used[above], start[node])
    for node in range(nodes - 1, -1, -1):
        above = parent[node]
        if above < 0 or used[node] <= start[node]:
            continue
        if parent[above] >= 0 and children[above] == 1:
            stands_for[above] = stands_for[node]
            top[stands_for[node]] = above


@njit(cache=True)
def mark_common(parent, start, end, leaf, reach, common):  # type: ignore[no-untyped-def]
    """Depth in each segment down to which it is common, from each request's common ``reach``."""
    for request in range(leaf.size):
        node = leaf[request]
        while parent[node] >= 0:
            upto = min(end[node], reach[request])
            if upto > start[node]:
                if common[node] >= upto:
                    break  # so is everything above it
                common[node] = upto
            node = parent[node]
