"""What the hub and the way to it refuse, said in a sentence that names the model, the reason and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from executor.base.errors import FetchError
from executor.gguf.model_name import HubName


class BrokenOff(FetchError):
    """The network failed; another try may succeed."""


@contextmanager
def hub_errors(name: HubName, state: Callable[[], str]) -> Iterator[None]:
    """What huggingface_hub raises in the block, as FetchError in a sentence; `state` says what there is already. No
    address is shown but the hub's own: those that it redirects to hold signatures."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        where = f"{constants.ENDPOINT}/{name.repository}"
        raise FetchError(
            f"{name}: the repository is gated: accept its terms at {where}, then log in by `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(
            f"{name}: {constants.ENDPOINT} has no repository {name.repository} that you may read; for a private one log in by "
            "`hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FetchError(f"{name}: the repository has no branch, tag or commit {name.revision}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        kind = BrokenOff if status in (408, 429) or status >= 500 else FetchError
        raise kind(f"{name}: the hub answers {status} {error.response.reason_phrase}; {state()}") from error
    except errors.OfflineModeIsEnabled as error:
        raise FetchError(f"{name}: HF_HUB_OFFLINE is set, and {state()}{_cure(name)}") from error
    except errors.HTTPError as error:
        why = f"the connection to {constants.ENDPOINT} fails ({type(error).__name__})"
        raise BrokenOff(f"{name}: {why}; {state()}{_cure(name)}") from error


def _cure(name: HubName) -> str:
    return (
        f"\n  where there is a network: ptxrun models fetch {name} --model-dir DIR\n"
        f"  then copy DIR/{name.folder} to this machine, and say --model-dir (or PTXGEN_MODEL_DIR) here"
    )
