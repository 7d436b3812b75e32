"""Whether this node can go on from a session's KV."""

from typing import TYPE_CHECKING

from workers.settings import settings

if TYPE_CHECKING:
    from kv_tier.carried import Node
    from kv_tier.manifest import Manifest


def served() -> "Node | None":
    """What KV must have been made with to be of use here; None: the model is not here."""
    from kernels.arithmetic import ARITHMETIC_VERSION
    from kv_tier.carried import Node
    from workers.engine.payload import sizes_of
    from workers.model import catalog
    from workers.model.build import PACK
    from workers.model.config import BadModel
    from workers.model.pack import Weights

    home, name = settings().home, settings().model
    try:
        digest = catalog.card_of(home, name)["weights_digest"]
        config = Weights.open(catalog.folder_of(home, name) / PACK).config
    except (BadModel, OSError):
        return None
    return Node(name, digest, str(ARITHMETIC_VERSION), sizes_of(config, digest))


def why_not(manifest: "Manifest") -> str | None:
    """Why this node cannot go on from its KV; None: it can."""
    from kv_tier.carried import misfit

    node = served()
    if node is None:
        return f"model {settings().model!r} is not here: lockstep model list"
    return misfit(manifest, node)
