"""kcat, the command-line client over librdkafka (Debian ships an old one, which is what makes it interesting).

A consumer is a kcat process whose output is read as it comes; to produce is to run kcat once for each run of records
that its options can say together.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from stdio import Refused, decode, headers_of, record_to_json, serve

RUN_TIMEOUT_S = 40
STOP_TIMEOUT_S = 10
KEY_DELIMITER = "~key~"
RECORD_DELIMITER = "~end~"

# A line of numbers and headers, then key and value as they are; sizes are -1 for null.
FORMAT = "%t %p %o %T %K %S %h\\n%k%s\\n"
REBALANCED = re.compile(r"rebalanced \(memberid [^)]*\): (\w+):([^\n]*)")
OFFSET_NAMES = {"earliest": "beginning", "latest": "end"}
RESET_NAMES = {"earliest": "earliest", "latest": "latest", "none": "error"}
QUERY_TIMES = {"earliest": -2, "latest": -1}
ERROR_TEXTS = {
    "Offset out of range": 1,
    "Unknown topic or partition": 3,
    "Message size too large": 10,
    "Static consumer fenced": 82,
}

NO_ADMIN = "kcat does not administer"
LACKS = {
    "describe_unknown": "kcat lets the broker create the topic that it asks about",
    "timestamps": "kcat cannot set a record's timestamp",
    "commit_offsets": "kcat commits what it has printed, when it ends",
    "committed": "kcat does not show committed offsets",
    "create_topic": NO_ADMIN,
    "delete_topic": NO_ADMIN,
    "create_partitions": NO_ADMIN,
    "alter_config": NO_ADMIN,
    "describe_config": NO_ADMIN,
    "delete_records": NO_ADMIN,
    "list_groups": NO_ADMIN,
    "describe_group": NO_ADMIN,
    "delete_group": NO_ADMIN,
    "group_offsets": NO_ADMIN,
}


def refused(text):
    code = next((code for known, code in ERROR_TEXTS.items() if known in text), None)
    return Refused(code, text.strip()[-500:])


def parse(output):
    """The records that `output` holds in full, and how many bytes they took."""
    records, taken = [], 0
    while (end := output.find(b"\n", taken)) >= 0:
        topic, partition, offset, timestamp, key_size, value_size, headers = output[taken:end].split(b" ", 6)
        key_end = end + 1 + max(0, int(key_size))
        value_end = key_end + max(0, int(value_size))
        if len(output) < value_end + 1:
            break
        pairs = [header.split(b"=", 1) for header in headers.split(b",")] if headers else []
        records.append(
            record_to_json(
                topic.decode(),
                int(partition),
                int(offset),
                int(timestamp),
                output[end + 1 : key_end] if int(key_size) >= 0 else None,
                output[key_end:value_end] if int(value_size) >= 0 else None,
                [(name.decode(), data) for name, data in pairs],
            )
        )
        taken = value_end + 1
    return records, taken


class Reader:
    """A running kcat, whose output lies in two files until it is asked for."""

    def __init__(self, kcat, arguments):
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._taken = 0
        self._process = subprocess.Popen(
            [kcat, *arguments], stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors
        )

    def records(self):
        ended = self._process.poll() is not None  # asked first: what an ended process wrote is all there
        size = os.fstat(self._output.fileno()).st_size
        records, taken = parse(os.pread(self._output.fileno(), size - self._taken, self._taken))
        self._taken += taken
        if ended and self._process.returncode != 0 and not records:
            raise refused(self.messages())
        return records

    def messages(self):
        return os.pread(self._errors.fileno(), os.fstat(self._errors.fileno()).st_size, 0).decode(errors="replace")

    def close(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        finally:
            self._process.kill()
            self._output.close()
            self._errors.close()


class Consumer:
    def __init__(self, kcat, bootstrap, spec):
        options = {
            "auto.offset.reset": RESET_NAMES[spec["reset"]],
            "fetch.wait.max.ms": 100,
            "session.timeout.ms": 45000,
            "heartbeat.interval.ms": 300,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        if spec["instance"]:
            options["group.instance.id"] = spec["instance"]
        common = ["-b", bootstrap, "-u", "-f", FORMAT]
        for name, value in options.items():
            common += ["-X", f"{name}={value}"]
        if spec["topics"]:
            runs = [["-G", spec["group"], *spec["topics"]]]
        else:
            runs = [["-C", "-t", each["topic"], "-p", str(each["partition"]), *start(each)] for each in spec["assign"]]
        self._readers = [Reader(kcat, [*common, *run]) for run in runs]

    def step(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while True:
            records = list(itertools.chain.from_iterable(reader.records() for reader in self._readers))
            if records or time.monotonic() > deadline:
                return records
            time.sleep(0.02)

    def assignment(self):
        held = []
        for what, partitions in re.findall(
            r"rebalanced \(memberid [^)]*\): (\w+):([^\n]*)", self._readers[0].messages()
        ):
            named = re.findall(r"(\S+) \[(\d+)\]", partitions)
            held = [(topic, int(number)) for topic, number in named] if what == "assigned" else []
        return held

    def commit(self, offsets):
        """Nothing to do: it commits what it printed when it is closed."""

    def committed(self, partition):
        raise NotImplementedError

    def close(self):
        for reader in self._readers:
            reader.close()


def start(spec):
    at = spec["at"]
    return ["-o", f"s@{at['time']}" if isinstance(at, dict) else str(OFFSET_NAMES.get(at, at))]


class Client:
    def __init__(self, bootstrap):
        self._bootstrap = bootstrap
        self._kcat = shutil.which("kcat") or shutil.which("kafkacat") or "kcat"

    def _run(self, *arguments, stdin=b""):
        command = [self._kcat, "-b", self._bootstrap, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=RUN_TIMEOUT_S, check=False)

    def _asked(self, *arguments):
        done = self._run(*arguments)
        if done.returncode:
            raise refused(done.stderr.decode(errors="replace"))
        return done.stdout

    def hello(self):
        version = re.search(rb"Version (\S+) .*librdkafka (\S+)", self._run("-V").stdout)
        name = "kcat {}, librdkafka {}".format(*(each.decode() for each in version.groups())) if version else "kcat"
        return {"client": name, "lacks": LACKS}

    def refusal(self, error):
        return None

    def produce(self, topic, codec, idempotent, acks, records):
        """What one run can say is written together; between partitions there is no order to keep."""

        def together(place):
            return records[place]["partition"], records[place]["headers"], records[place]["value"] is None

        results = [{}] * len(records)
        places = sorted(range(len(records)), key=lambda place: records[place]["partition"])
        settings = [f"acks={acks}", "linger.ms=20"]
        settings.append(
            "enable.idempotence=true" if idempotent else "max.in.flight=1"
        )  # else a retry changes the order
        for (partition, _, null_value), run in itertools.groupby(places, together):
            batch = list(run)
            options = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-vvv"]
            options += ["-K", KEY_DELIMITER, "-D", RECORD_DELIMITER]
            options += ["-Z"] if null_value else []
            for setting in settings:
                options += ["-X", setting]
            for name, data in headers_of(records[batch[0]]):
                options += ["-H", f"{name}={data.decode()}"]
            lines = [self._line(records[place]) for place in batch]
            done = self._run(*options, stdin=RECORD_DELIMITER.encode().join(lines))
            outcomes = self._results(len(batch), done.stderr.decode(errors="replace"))
            for place, outcome in zip(batch, outcomes, strict=True):
                results[place] = outcome
        return results

    @staticmethod
    def _line(record):
        key = decode(record["key"])
        value = decode(record["value"]) or b""
        return value if key is None else key + KEY_DELIMITER.encode() + value

    @staticmethod
    def _results(count, messages):
        """kcat names what it delivered in order, and fails as a whole."""
        delivered = re.findall(r"Message delivered to partition (\d+) \(offset (-?\d+)\)", messages)
        if len(delivered) != count:
            return [{"error": refused(messages).as_json()}] * count
        return [{"partition": int(partition), "offset": int(offset)} for partition, offset in delivered]

    def open(self, spec):
        return Consumer(self._kcat, self._bootstrap, spec)

    def list_topics(self):
        return {"topics": [topic["topic"] for topic in json.loads(self._asked("-L", "-J"))["topics"]]}

    def describe_topic(self, topic):
        found = json.loads(self._asked("-L", "-J", "-t", topic))["topics"][0]
        if "error" in found:
            raise refused(found["error"])
        return {"partitions": len(found["partitions"])}

    def list_offsets(self, topic, partition, at):
        time_ms = at["time"] if isinstance(at, dict) else QUERY_TIMES[at]
        found = re.search(rb"offset (-?\d+)", self._asked("-Q", "-t", f"{topic}:{partition}:{time_ms}"))
        offset = int(found.group(1)) if found else -1
        return {"offset": offset if offset >= 0 else None}


if __name__ == "__main__":
    serve(Client(sys.argv[1]))
