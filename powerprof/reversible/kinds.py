# SPDX-License-Identifier: Apache-2.0
"""Kinds of settings that can be changed and restored. The keeper receives them as data, not as code.

A kind has these members; `read` and `write` raise PowerprofError:
    name: a name for people.
    value: the temporary value.
    read: return the present value; None if the owner of the setting has ended. Raise FileAway if it may come back.
    write: set a value, and return the value read back at once. Later another user may have changed it.
    by_hand: return the command that sets a value.
    lasts: the end of its value without a restoration.
A new kind is a class in this package and a name in `Setting`.
"""

from __future__ import annotations

import msgspec

from powerprof.reversible.host_settings import HostFile, HostSetting
from powerprof.reversible.postgres_settings import PostgresSetting
from powerprof.reversible.timer_slack import TimerSlack
from powerprof.reversible.variables import Variable
from powerprof.system.errors import PowerprofError

Setting = Variable | PostgresSetting | TimerSlack | HostSetting


class AppliedChange(msgspec.Struct):
    """A setting that was changed, with its old value.

    Attributes:
        since: its value as it reads after the change (ON may read 1); None if unknown.
    """

    setting: Setting
    before: str
    since: str | None = None

    def put_back(self) -> None:
        """Restore the old value, unless another user has changed it. Raise FileAway, and PowerprofError if it fails."""
        now = self.setting.read()
        if now == self.before and isinstance(self.setting, PostgresSetting):
            self.setting.load()
        if now in (None, self.before) or not self._is_ours(now):
            return
        self.setting.write(self.before)
        if (now := self.setting.read()) not in (self.before, None):
            raise PowerprofError(f"{self.setting.name} is {now} still", self.setting.by_hand(self.before))

    def _is_ours(self, now: str | None) -> bool:
        if self.since is None and isinstance(self.setting, HostFile):  # It was away when it was to be read.
            return is_same_value(now or "", self.setting.value)
        return self.since in (None, now)


_FALSE, _TRUE = ("off", "false", "no"), ("on", "true", "yes")


def is_same_value(one: str, other: str) -> bool:
    """Return whether two texts are the same value of a setting: ON is 1, 0.5 is 0.500000, and case is ignored."""
    return _parse_value(one) == _parse_value(other)


def _parse_value(value: str) -> str | float:
    text = value.strip().casefold()
    if text in _FALSE or text in _TRUE:
        return float(text in _TRUE)
    try:
        return float(text)
    except ValueError:
        return text
