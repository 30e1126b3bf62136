"""Pages: buffers that begin on one, which a device copies from and to or shares in place."""

from __future__ import annotations

import math
import mmap

import numpy as np
import numpy.typing as npt


def zeros_on_pages(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """``f32`` zeros on whole pages of their own, which the system gives when they are first written.

    Small pages: a huge one would span a whole head of a KV lane, and its first token would cost what its last one does.
    """
    pages = mmap.mmap(-1, math.prod(shape) * 4)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.float32).reshape(shape)
