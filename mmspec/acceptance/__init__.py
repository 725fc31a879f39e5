"""Acceptance rules on plain tensors: each decides the path through a verified draft and states under which law.

exact: coupled match, the default. match: the same comparison for drafts made without the target's noise.
ratio: p/q for chains and trees of sampled children. block: the same law, drafts judged as a whole, accepting more.
typical: keeps what the target finds likely enough; lossy, and never chosen unless it is asked for.
"""
