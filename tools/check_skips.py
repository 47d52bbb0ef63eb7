"""Fail if a test was skipped for any reason but the missing shared folder.

Usage: ``python tools/check_skips.py JUNIT_XML``.  Prints every skipped test with its reason.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree

ALLOWED = "needs SMETRIC_SHARED"


def main(path: str) -> int:
    allowed, wrong, total = [], [], 0
    for case in ElementTree.parse(path).iter("testcase"):
        total += 1
        skipped = case.find("skipped")
        if skipped is None:
            continue
        reason = skipped.get("message", "")
        where = f"{case.get('classname')}::{case.get('name')}: {reason}"
        expected = ALLOWED in reason and not os.environ.get("SMETRIC_SHARED")
        (allowed if expected else wrong).append(where)
    for where in allowed + wrong:
        print(f"skipped: {where}")
    print(f"{total} tests, {len(allowed)} skipped for want of the shared folder, {len(wrong)} else")
    if wrong:
        print("tests may be skipped only where SMETRIC_SHARED is not set", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
