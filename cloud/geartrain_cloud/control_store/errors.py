"""What control refuses, each with the code and the HTTP status by which REST says it."""

from __future__ import annotations

from typing import ClassVar

from geartrain.errors import GeartrainError


class ControlError(GeartrainError):
    """A request that control refuses; the sentence says what was wrong and what to do."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "bad_request"


class InvalidError(ControlError):
    """A name, a selector, a setting or a field that cannot be."""

    code = "invalid"


class NotFoundError(ControlError):
    """There is no app, device or table of this name."""

    status = 404
    code = "not_found"


class ConflictError(ControlError):
    """What is asked for contradicts what stands."""

    status = 409
    code = "conflict"


class UnchangedError(ConflictError):
    """What is asked for is so already."""

    code = "unchanged"


class UnauthorizedError(ControlError):
    """Who asks shows no token that is good."""

    status = 401
    code = "unauthorized"


class ExpiredError(UnauthorizedError):
    """A token that was good, and is so no longer."""

    code = "expired"


class ForbiddenError(ControlError):
    """The token of who asks is good, but not for this."""

    status = 403
    code = "forbidden"


class RefusedError(ControlError):
    """Who asks may not have this: its token or its certificate is not, or no longer, good for it."""

    status = 403
    code = "refused"


class UnansweredError(ControlError):
    """A question that the running app cannot answer, or has not answered in time."""

    status = 409
    code = "unanswered"


class TooManyError(ControlError):
    """More is asked at a time than is answered."""

    status = 429
    code = "too_many"


class ThrottledError(TooManyError):
    """Too many wrong tokens of one address; wait_s: seconds until there is an answer again."""

    code = "throttled"

    def __init__(self, sentence: str, wait_s: int) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s


class UnsupportedError(ControlError):
    """A body that says it is of another media type than is taken."""

    status = 415
    code = "unsupported_media_type"


class FlowRefusedError(ControlError):
    """The flow, its cut or a setting of it was refused when it was loaded."""

    status = 422
    code = "flow_refused"


class UnavailableError(ControlError):
    """Something that control needs does not answer now."""

    status = 503
    code = "unavailable"


class StoreError(ControlError):
    """The control store cannot be read or written."""

    status = 503
    code = "store"
