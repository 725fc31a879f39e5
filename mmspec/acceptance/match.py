"""Match: draw the target's token after each node and descend if a child equals it: ratio with q a point mass."""

from mmspec.acceptance.exact import Exact


class Match(Exact):
    """Law: the target's, for every candidate set that was chosen without the target's noise.

    The comparison is that of `Exact`; the difference is what it asks of the drafter: plain top-k or sampled children,
    as EAGLE-2 (arXiv 2406.16858) drafts them, instead of coupled ones.
    """

    takes = ("point", "sampled")
