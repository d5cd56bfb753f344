"""The two transactional stores of a simulated world, under one name for the checkers of both."""

from geartrain_simulation.stores.ledger_book import DIGESTS_KEPT, LedgerBook
from geartrain_simulation.stores.ledgers import SimLedgerStore
from geartrain_simulation.stores.spools import SimSpoolStore, SpoolBook

__all__ = ["DIGESTS_KEPT", "LedgerBook", "SimLedgerStore", "SimSpoolStore", "SpoolBook"]
