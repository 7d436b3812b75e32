"""The waiting sequences of one class: by tenant, each tenant's in order of rank.

    tenant a   served 900   [ s1  s4 ]
    tenant b   served 120   [ s2 ]            head: s2, for b has had less
    tenant c   served 120   [ s3 ]            (of equals: the better rank)

A tenant's account is its virtual time: the tokens computed for it in this class. Whoever has the
smallest goes first, so that tenants share what the class gets, however many requests each sends. A
tenant that comes back starts at the account of the one that has had least: nobody saves up.

Invariants, checked by check(): a tenant is known while it has a sequence that waits or was served
and has not left; each tenant's waiting ones are in order of rank.
"""

from bisect import insort
from collections.abc import Iterator

from workers.engine.sequence import Sequence


def rank_of(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank


class Line:
    """join and leave say who belongs to the class; add and remove, who waits."""

    def __init__(self) -> None:
        self.served_ms = 0  # when a step last computed something of this class, Unix ms
        self.num_members = 0
        self._waiting: dict[str, list[Sequence]] = {}  # tenants with a member
        self._members: dict[str, int] = {}
        self._accounts: dict[str, int] = {}  # tokens; also of tenants that left ahead of the others
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """Tenants by account, each one's in order of rank: about as they will go."""
        for tenant in sorted(self._waiting, key=self._turn_of):
            yield from self._waiting[tenant]

    def join(self, tenant: str, since_ms: int) -> None:
        """One more of the tenant is here, waiting since then."""
        if self.num_members == 0:
            self.served_ms = max(self.served_ms, since_ms)
            self._accounts.clear()
        if tenant not in self._members:
            floor = self._least()
            self._forget_those_behind(floor)
            self._accounts[tenant] = max(self._accounts.get(tenant, 0), floor)
            self._members[tenant] = 0
            self._waiting[tenant] = []
        self._members[tenant] += 1
        self.num_members += 1

    def leave(self, tenant: str) -> None:
        """One of the tenant has ended, or is somebody else's."""
        self._members[tenant] -= 1
        self.num_members -= 1
        if self._members[tenant] == 0:
            del self._members[tenant], self._waiting[tenant]

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting[sequence.request.tenant], sequence, key=rank_of)
        self._num_waiting += 1

    def remove(self, sequence: Sequence) -> None:
        self._waiting[sequence.request.tenant].remove(sequence)
        self._num_waiting -= 1

    def head(self) -> Sequence | None:
        """Who is next."""
        if self._num_waiting == 0:
            return None
        tenant = min((t for t, waiting in self._waiting.items() if waiting), key=self._turn_of)
        return self._waiting[tenant][0]

    def serve(self, tenant: str, num_tokens: int, now_ms: int) -> None:
        """A step computes so many tokens of the tenant."""
        self._accounts[tenant] += num_tokens
        self.served_ms = now_ms

    def check(self) -> None:
        """Assert the invariants."""
        assert self._waiting.keys() == self._members.keys() <= self._accounts.keys()
        assert self.num_members == sum(self._members.values())
        assert self._num_waiting == sum(map(len, self._waiting.values())) <= self.num_members
        for tenant, waiting in self._waiting.items():
            assert waiting == sorted(waiting, key=rank_of), tenant
            assert len(waiting) <= self._members[tenant] > 0, tenant

    def _turn_of(self, tenant: str) -> tuple[int, tuple[int, int, int]]:
        waiting = self._waiting[tenant]
        return self._accounts[tenant], waiting[0].rank if waiting else (0, 0, 0)

    def _least(self) -> int:
        """The smallest account of those who are here."""
        return min((self._accounts[tenant] for tenant in self._members), default=0)

    def _forget_those_behind(self, floor: int) -> None:
        """Of who has left, only what is ahead of the others is worth remembering."""
        gone = [t for t, n in self._accounts.items() if t not in self._members and n <= floor]
        for tenant in gone:
            del self._accounts[tenant]
