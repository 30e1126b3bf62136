"""Checkers: what must never happen, watched from outside while it does not.

They keep ledgers of their own from the events and effects that pass, so that a mistake in the core's books is
seen as a difference. Each is seen to fire on a planted fault (``tests/sim/test_ablation.py``).

| file | what it holds |
|---|---|
| ``requests`` | every request ends once, says no token twice, and deadlines are true |
| ``lanes`` | a lane is nobody's twice; an Unknown one is nobody's again |
| ``fairness`` | the bound proven in ``core/tenant_queue.py`` |
| ``diligence`` | the device does not idle while somebody waits; nobody starves |
| ``drain`` | after a drain began nobody comes in, and it ends in time |
| ``conservation`` | what clients heard is what the daemons said |
| ``leftovers`` | no task, stream, buffer or sequence is left |

Source: SPEC section 3, 4, 7 (S §4, §9.2, §17); TigerBeetle's VOPR for the manner.
"""
