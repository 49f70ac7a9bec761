"""Names that DeepEP's programs import from `deep_ep.utils`."""

from ._events import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
