"""Lets KeyboardInterrupt end a wait.

Python handles signals on the main thread, between two instructions, and so not while that thread is
in a function of C. A call that may wait is therefore made on a helper thread, for which the main
thread waits: that wait ends when a signal's handler raises an exception. The call itself continues
until its deadline. On other threads calls are made directly.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import Any, Callable, List, Optional

# A signal that arrives just before the main thread blocks, or on another thread, is handled at the
# end of a slice. In seconds.
_SLICE = 0.1


class Task:
    """A call on a helper thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._done = False
        self._released = threading.Lock()  # released when the call has returned
        self._released.acquire()
        self._value: Any = None
        self._error: Optional[BaseException] = None

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # pylint: disable=broad-except
            self._error = error
        finally:
            self._call = lambda: None
            self._done = True
            self._released.release()

    def result(self) -> Any:
        """Waits for the call, and returns its value or raises its exception. If the wait is ended
        by another exception, it can be repeated."""
        while not self._done:
            self._released.acquire(timeout=_SLICE)
        if self._error is not None:
            raise self._error
        return self._value


class _Helper(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="syncgrads wait", daemon=True)
        self._tasks: "queue.SimpleQueue[Task]" = queue.SimpleQueue()
        self.start()

    def submit(self, task: Task) -> None:
        self._tasks.put(task)

    def run(self) -> None:
        while True:
            task = self._tasks.get()
            task.run()
            del task
            _idle.append(self)


_idle: List[_Helper] = []
# A process that was forked has no helper threads.
os.register_at_fork(after_in_child=_idle.clear)


def is_main_thread() -> bool:
    """True if KeyboardInterrupt can be raised on this thread."""
    return threading.current_thread() is threading.main_thread()


def begin(call: Callable[[], Any]) -> Task:
    """Begins a call: on a helper thread if this is the main thread, else directly."""
    task = Task(call)
    if not is_main_thread():
        task.run()
        return task
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.submit(task)
    return task


class RepeatableWait:
    """A wait that continues, when it is repeated, where KeyboardInterrupt has ended it."""

    def __init__(self) -> None:
        self._task: Optional[Task] = None

    @property
    def has_begun(self) -> bool:
        """True from the beginning of a wait until it has returned or failed."""
        return self._task is not None

    def run(self, call: Callable[[], Any], is_ready: Callable[[], bool]) -> Any:
        """Makes the call, or waits for the one that was begun before. `is_ready` returns whether
        the call would return at once."""
        task = self._task
        if task is None:
            if is_ready():
                return call()
            task = self._task = begin(call)
        try:
            value = task.result()
        except Exception:
            self._task = None
            raise
        self._task = None
        return value


def wait_for(call: Callable[[], Any]) -> Any:
    """Makes a call, and returns its value or raises its exception."""
    return begin(call).result()
