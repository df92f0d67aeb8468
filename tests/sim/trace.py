"""How events look in a trace: short, one line each."""

from tidelog.raft import (
    AppendRejected,
    AppendRequest,
    AppendResponse,
    Envelope,
    Heartbeat,
    HeartbeatResponse,
    Message,
    TakeOver,
    VoteRequest,
    VoteResponse,
)

from .scheduler import Event


def describe_event(event: Event) -> str:
    return " ".join(_describe_envelope(part) if isinstance(part, Envelope) else str(part) for part in event.what)


def _describe_envelope(envelope: Envelope) -> str:
    return "; ".join(_describe(message) for message in envelope.messages) or "(is alive)"


def _describe(message: Message) -> str:
    match message:
        case AppendRequest():
            entries = " ".join(f"{entry.term}.{entry.kind.name.lower()}" for entry in message.entries)
            detail = f"after {message.previous_index}/{message.previous_term} [{entries}] commit {message.commit}"
        case AppendResponse():
            detail = f"match {message.match}" + ("" if message.accepting else " full")
        case AppendRejected():
            detail = f"{message.previous_index} hint {message.hint_index}/{message.hint_term}"
        case Heartbeat():
            detail = f"commit {message.commit}" + (" sleep?" if message.sleep else "")
        case HeartbeatResponse():
            detail = f"match {message.match} verified {message.verified}" + (" sleeps" if message.sleeping else "")
        case VoteRequest():
            detail = f"last {message.last_index}/{message.last_term}" + (" pre" if message.pre else "")
        case VoteResponse():
            detail = ("granted" if message.granted else "refused") + (" pre" if message.pre else "")
        case TakeOver():
            detail = f"from {message.index}/{message.log_term}"
        case _:
            detail = ""
    return f"g{message.group} t{message.term} {type(message).__name__} {detail}"
