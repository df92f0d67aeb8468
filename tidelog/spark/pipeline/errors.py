"""How a pipeline ends when it cannot go on; the exit statuses are those of `tidelog.pikiwi.errors`."""

from tidelog.pikiwi.errors import EXIT_FILES, EXIT_PASSING, PikiwiError


class DeliveryStopped(PikiwiError):
    """Trying again did not help; says up to which position everything was delivered."""

    exit_status = EXIT_PASSING


class QueryIdle(PikiwiError):
    """A query does nothing, and does not say why."""

    exit_status = EXIT_PASSING


class SparkUnavailable(PikiwiError):
    """Spark's JVM does not start, or is not there any more."""

    exit_status = EXIT_PASSING


class PipelineStateError(PikiwiError):
    """The pipeline's own files cannot be used."""

    exit_status = EXIT_FILES


class TopicError(PikiwiError):
    """A topic is not there and could not be made, or the cluster does not answer."""

    exit_status = EXIT_PASSING
