/* The load of `tidelog bench`: what a client does to a log, in as little of the machine as a client can.
 *
 *     load_client LIBRDKAFKA ROLE name=value …
 *
 *     produce   bootstrap topic topics partitions producers value_bytes seconds bytes_max linger_ms
 *               as fast as it goes; ends when everything is acknowledged
 *     pace      bootstrap topic value_bytes rate seconds skip_seconds linger_ms
 *               so many records a second, in steps of a millisecond; how long until each is acknowledged
 *     follow    bootstrap topic consumers count skip seconds
 *               from the end on; how long each record took since `pace` made it
 *     consume   bootstrap topic partitions records
 *               from the beginning; counted from its first records on
 *     requests  host port frame error_at connections seconds skip_seconds
 *               one ready-made request at a time on each connection, no librdkafka
 *
 * A role prints `ready` when it is about to begin and one line of JSON in the end. load_client_python.py is its twin, for
 * machines without a compiler: same roles, same arguments, same answers.
 *
 * librdkafka is the one that came with the Python package confluent-kafka. It is opened by its path, so that neither
 * its headers nor a second copy of it are needed; what is used of its stable interface is declared here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ERROR_BYTES = 512,
    PRODUCERS_MAX = 64,
    CONSUMERS_MAX = 64,
    CONNECTIONS_MAX = 4096,
    ANSWER_BYTES_MAX = 4096,
    CLOCK_EVERY = 64,      /* records between two looks at the clock */
    FULL_WAIT_MS = 5,      /* when librdkafka holds as much as it may */
    STEP_NS = 1000000,     /* of a paced load */
    SILENCE_MS_MAX = 20000,
    FLUSH_MS_MAX = 150000,
};

/* --- librdkafka, as far as it is used ----------------------------------------------------------------------------- */

typedef struct {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} message_t;

enum { PRODUCER = 0, CONSUMER = 1, MSG_COPY = 2, ERR_QUEUE_FULL = -184, ERR_PARTITION_EOF = -191, OFFSET_BEGINNING = -2 };

static void *(*conf_new)(void);
static int (*conf_set)(void *, const char *, const char *, char *, size_t);
static void (*conf_set_dr_msg_cb)(void *, void (*)(void *, const message_t *, void *));
static void *(*kafka_new)(int, void *, char *, size_t);
static void *(*topic_new)(void *, const char *, void *);
static int (*produce)(void *, int32_t, int, void *, size_t, const void *, size_t, void *);
static int (*kafka_poll)(void *, int);
static int (*flush)(void *, int);
static int (*last_error)(void);
static const char *(*err2str)(int);
static int (*query_watermarks)(void *, const char *, int32_t, int64_t *, int64_t *, int);
static void *(*queue_new)(void *);
static int (*consume_start)(void *, int32_t, int64_t, void *);
static int (*consume_callback)(void *, int, void (*)(message_t *, void *), void *);

_Noreturn static void fail(const char *what, const char *why) {
    fprintf(stderr, "load_client: %s: %s\n", what, why);
    exit(1);
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail("librdkafka", dlerror());
    return found;
}

static void open_librdkafka(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fail("librdkafka", dlerror());
    conf_new = symbol(library, "rd_kafka_conf_new");
    conf_set = symbol(library, "rd_kafka_conf_set");
    conf_set_dr_msg_cb = symbol(library, "rd_kafka_conf_set_dr_msg_cb");
    kafka_new = symbol(library, "rd_kafka_new");
    topic_new = symbol(library, "rd_kafka_topic_new");
    produce = symbol(library, "rd_kafka_produce");
    kafka_poll = symbol(library, "rd_kafka_poll");
    flush = symbol(library, "rd_kafka_flush");
    last_error = symbol(library, "rd_kafka_last_error");
    err2str = symbol(library, "rd_kafka_err2str");
    query_watermarks = symbol(library, "rd_kafka_query_watermark_offsets");
    queue_new = symbol(library, "rd_kafka_queue_new");
    consume_start = symbol(library, "rd_kafka_consume_start_queue");
    consume_callback = symbol(library, "rd_kafka_consume_callback_queue");
}

/* --- Arguments, clock, results ------------------------------------------------------------------------------------ */

static char **arguments;

static const char *text(const char *name) {
    size_t length = strlen(name);
    for (char **argument = arguments; *argument; argument++)
        if (!strncmp(*argument, name, length) && (*argument)[length] == '=') return *argument + length + 1;
    fail(name, "is not given");
}

static double number(const char *name) {
    char *end;
    const char *given = text(name);
    double value = strtod(given, &end);
    if (end == given || *end) fail(name, "is not a number");
    return value;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static volatile sig_atomic_t told_to_end;
static void on_sigterm(int signal) { (void)signal, told_to_end = 1; }

static atomic_llong failed;
static int64_t begun_ns;
static double begun_cpu_s;

static void say_ready(void) {
    puts("ready");
    fflush(stdout);
    begun_ns = now_ns();
    begun_cpu_s = cpu_s();
}

typedef struct {
    int64_t *ns;
    int64_t count, room;
} samples_t;

static samples_t samples_of(int64_t room) {
    samples_t made = {malloc(sizeof(int64_t) * (room + 1)), 0, room};
    if (!made.ns) fail("memory", "too many samples");
    return made;
}

static void add_sample(samples_t *samples, int64_t ns) {
    if (samples->count < samples->room) samples->ns[samples->count++] = ns;
}

static int by_size(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static void print_outcome(double seconds, int64_t records, int64_t bytes, samples_t *samples) {
    printf("{\"seconds\": %.6f, \"records\": %lld, \"bytes\": %lld, \"failed\": %lld, \"cpu_s\": %.4f, \"latencies_ms\": {",
           seconds, (long long)records, (long long)bytes, (long long)failed, cpu_s() - begun_cpu_s);
    if (samples && samples->count) {
        static const struct { const char *name; double share; } shares[] = {
            {"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1.0}};
        qsort(samples->ns, samples->count, sizeof(int64_t), by_size);
        for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
            int64_t place = samples->count * shares[i].share;
            if (place >= samples->count) place = samples->count - 1;
            printf("%s\"%s\": %.4f", i ? ", " : "", shares[i].name, samples->ns[place] / 1e6);
        }
    }
    puts("}}");
}

/* --- Producers ---------------------------------------------------------------------------------------------------- */

static void set(void *conf, const char *name, const char *value) {
    char error[ERROR_BYTES];
    if (conf_set(conf, name, value, error, sizeof error)) fail(name, error);
}

static void *new_client(int kind, void *conf) {
    char error[ERROR_BYTES];
    set(conf, "bootstrap.servers", text("bootstrap"));
    void *made = kafka_new(kind, conf, error, sizeof error);
    if (!made) fail("librdkafka", error);
    return made;
}

static void count_failure(void *client, const message_t *message, void *opaque) {
    (void)client, (void)opaque;
    if (message->err && failed++ == 0) fprintf(stderr, "load_client: not delivered: %s\n", err2str(message->err));
}

static void *producer_conf(void (*report)(void *, const message_t *, void *), const char *errors_only) {
    void *conf = conf_new();
    set(conf, "acks", "all");
    set(conf, "linger.ms", text("linger_ms"));
    set(conf, "message.timeout.ms", "150000");
    set(conf, "queue.buffering.max.messages", "500000");
    set(conf, "queue.buffering.max.kbytes", "65536");
    set(conf, "delivery.report.only.error", errors_only);
    conf_set_dr_msg_cb(conf, report);
    return conf;
}

typedef struct {
    int place;
    int64_t records;
    void *client, **topics;
    char *value;
} producer_t;

static int stream_count, topic_count, partition_count;
static size_t value_bytes;
static int64_t records_max;
static double seconds_max;

/* Streams in turn: partitions of one topic, or topics that are numbered. */
static void put(producer_t *producer, int64_t number, int flags, void *opaque) {
    int stream = (int)(number % stream_count);
    void *topic = producer->topics[stream / partition_count];
    while (produce(topic, stream % partition_count, flags, producer->value, value_bytes, NULL, 0, opaque)) {
        if (last_error() != ERR_QUEUE_FULL) fail("produce", err2str(last_error()));
        kafka_poll(producer->client, FULL_WAIT_MS);
    }
}

static void flush_all(void *client) {
    if (flush(client, FLUSH_MS_MAX)) fail("flush", "records are not acknowledged in time");
}

static void prepare(producer_t *producer, void *conf) {
    char name[256];
    producer->client = new_client(PRODUCER, conf);
    producer->topics = calloc(topic_count, sizeof(void *));
    producer->value = malloc(value_bytes);
    unsigned seed = 1;
    for (size_t i = 0; i < value_bytes; i++) producer->value[i] = (char)rand_r(&seed);
    for (int i = 0; i < topic_count; i++) {
        if (topic_count == 1) snprintf(name, sizeof name, "%s", text("topic"));
        else snprintf(name, sizeof name, "%s-%04d", text("topic"), i);
        producer->topics[i] = topic_new(producer->client, name, NULL);
    }
    for (int i = 0; i < stream_count; i++) put(producer, i, 0, NULL); /* connections and metadata */
    flush_all(producer->client);
}

static void *run_producer(void *argument) {
    producer_t *producer = argument;
    int64_t end_ns = begun_ns + (int64_t)(seconds_max * 1e9), number = 0;
    for (; number < records_max; number++) {
        if (number % CLOCK_EVERY == 0 && now_ns() >= end_ns) break;
        put(producer, number + producer->place, 0, NULL);
    }
    flush_all(producer->client);
    producer->records = number;
    return NULL;
}

static void role_produce(void) {
    static producer_t producers[PRODUCERS_MAX];
    pthread_t threads[PRODUCERS_MAX];
    int count = (int)number("producers");
    topic_count = (int)number("topics"), partition_count = (int)number("partitions");
    stream_count = topic_count * partition_count;
    value_bytes = (size_t)number("value_bytes");
    seconds_max = number("seconds");
    records_max = (int64_t)(number("bytes_max") / value_bytes / count);
    if (count < 1 || count > PRODUCERS_MAX || stream_count < 1 || !value_bytes) fail("produce", "nothing to do");
    for (int i = 0; i < count; i++) {
        producers[i].place = i;
        prepare(&producers[i], producer_conf(count_failure, "true"));
    }
    say_ready();
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, run_producer, &producers[i]);
    int64_t records = 0;
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL), records += producers[i].records;
    print_outcome((now_ns() - begun_ns) / 1e9, records, records * (int64_t)value_bytes, NULL);
}

static samples_t acknowledged;
static int64_t counted_from_ns = INT64_MAX; /* connections and caches get warm before */
static atomic_int pacing = 1;

static void time_delivery(void *client, const message_t *message, void *opaque) {
    count_failure(client, message, opaque);
    int64_t made_ns = (int64_t)(intptr_t)message->opaque;
    if (!message->err && made_ns >= counted_from_ns) add_sample(&acknowledged, now_ns() - made_ns);
}

static void *run_poller(void *client) {
    while (pacing) kafka_poll(client, 100);
    return NULL;
}

static void role_pace(void) {
    producer_t producer = {0};
    pthread_t poller;
    double rate = number("rate"), seconds = number("seconds");
    topic_count = partition_count = stream_count = 1;
    value_bytes = (size_t)number("value_bytes");
    if (value_bytes < sizeof(int64_t)) fail("value_bytes", "no room for the time");
    acknowledged = samples_of((int64_t)(rate * seconds) + 1);
    prepare(&producer, producer_conf(time_delivery, "false"));
    pthread_create(&poller, NULL, run_poller, producer.client);
    say_ready();
    counted_from_ns = begun_ns + (int64_t)(number("skip_seconds") * 1e9);
    int64_t sent = 0, steps = (int64_t)(seconds * 1e9) / STEP_NS;
    for (int64_t step = 1; step <= steps; step++) {
        for (int64_t due = (int64_t)(rate * step * STEP_NS / 1e9); sent < due; sent++) {
            int64_t made_ns = now_ns();
            memcpy(producer.value, &made_ns, sizeof made_ns);
            put(&producer, 0, MSG_COPY, (void *)(intptr_t)made_ns);
        }
        int64_t next_ns = begun_ns + step * STEP_NS;
        struct timespec next = {next_ns / 1000000000LL, next_ns % 1000000000LL};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL) == EINTR) {}
    }
    flush_all(producer.client);
    double taken_s = (now_ns() - begun_ns) / 1e9;
    pacing = 0;
    pthread_join(poller, NULL);
    print_outcome(taken_s, sent, sent * (int64_t)value_bytes, &acknowledged);
}

/* --- Consumers ---------------------------------------------------------------------------------------------------- */

typedef struct {
    void *client, *queue;
    int64_t records, bytes, skip;
    samples_t samples;
} consumer_t;

static void *consumer_client(void) {
    void *conf = conf_new();
    set(conf, "fetch.queue.backoff.ms", "1"); /* by default it pauses for a second whenever its queue is full */
    set(conf, "auto.offset.reset", "error");
    return new_client(CONSUMER, conf);
}

static void begin_consuming(consumer_t *consumer, int partitions, int from_the_end) {
    consumer->client = consumer_client();
    consumer->queue = queue_new(consumer->client);
    void *topic = topic_new(consumer->client, text("topic"), NULL);
    for (int32_t i = 0; i < partitions; i++) {
        int64_t low, offset = OFFSET_BEGINNING;
        if (from_the_end) {
            int error = query_watermarks(consumer->client, text("topic"), i, &low, &offset, SILENCE_MS_MAX);
            if (error) fail("the latest offset", err2str(error));
        }
        if (consume_start(topic, i, offset, consumer->queue)) fail("consume", err2str(last_error()));
    }
}

static void take_one(message_t *message, void *opaque) {
    consumer_t *consumer = opaque;
    int64_t made_ns;
    if (message->err == ERR_PARTITION_EOF) return;
    if (message->err) fail("consume", err2str(message->err));
    if (++consumer->records > consumer->skip && consumer->samples.room && message->len >= sizeof made_ns) {
        memcpy(&made_ns, message->payload, sizeof made_ns);
        add_sample(&consumer->samples, now_ns() - made_ns);
    }
    consumer->bytes += (int64_t)message->len;
}

/* Takes all that has come, and waits for something if nothing has. */
static void take(consumer_t *consumer, int wait_ms) {
    if (consume_callback(consumer->queue, wait_ms, take_one, consumer) < 0) fail("consume", err2str(last_error()));
}

static void role_consume(void) {
    consumer_t consumer = {0};
    int64_t wanted = (int64_t)number("records"), first_records = 0, first_bytes = 0;
    say_ready();
    begin_consuming(&consumer, (int)number("partitions"), 0);
    for (int64_t heard_ns = now_ns(); consumer.records < wanted;) {
        int64_t before = consumer.records;
        take(&consumer, 100);
        if (consumer.records > before) heard_ns = now_ns();
        else if (now_ns() - heard_ns > SILENCE_MS_MAX * 1000000LL) fail("consume", "nothing comes");
        else continue;
        if (!before) { /* connections are made: now it counts */
            begun_ns = now_ns();
            first_records = consumer.records, first_bytes = consumer.bytes;
        }
    }
    print_outcome((now_ns() - begun_ns) / 1e9, consumer.records - first_records, consumer.bytes - first_bytes, NULL);
}

static int64_t follow_count;

static void *run_follower(void *argument) {
    consumer_t *consumer = argument;
    int64_t end_ns = begun_ns + (int64_t)(seconds_max * 1e9);
    while (!told_to_end && consumer->records < follow_count && now_ns() < end_ns)
        take(consumer, 100);
    return NULL;
}

static void role_follow(void) {
    static consumer_t consumers[CONSUMERS_MAX];
    pthread_t threads[CONSUMERS_MAX];
    int count = (int)number("consumers");
    follow_count = (int64_t)number("count"), seconds_max = number("seconds");
    if (count < 1 || count > CONSUMERS_MAX) fail("consumers", "not so many");
    signal(SIGTERM, on_sigterm);
    for (int i = 0; i < count; i++) {
        if (i == 0) consumers[i].samples = samples_of(follow_count); /* the others are there to be served */
        consumers[i].skip = (int64_t)number("skip");
        begin_consuming(&consumers[i], 1, 1);
        take(&consumers[i], 300); /* nothing is there yet, but the consumer waits for it from now on */
    }
    say_ready();
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, run_follower, &consumers[i]);
    int64_t records = 0, bytes = 0;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL), records += consumers[i].records, bytes += consumers[i].bytes;
    print_outcome((now_ns() - begun_ns) / 1e9, records, bytes, &consumers[0].samples);
}

/* --- Ready-made requests ------------------------------------------------------------------------------------------ */

typedef struct {
    int socket;
    int64_t sent_ns;
    size_t filled;
    unsigned char answer[ANSWER_BYTES_MAX];
} connection_t;

static char *frame;
static size_t frame_bytes;

static void read_frame(void) {
    FILE *file = fopen(text("frame"), "rb");
    if (!file) fail(text("frame"), strerror(errno));
    fseek(file, 0, SEEK_END);
    frame_bytes = (size_t)ftell(file);
    rewind(file);
    frame = malloc(frame_bytes);
    if (fread(frame, 1, frame_bytes, file) != frame_bytes) fail(text("frame"), "cannot be read");
    fclose(file);
}

static void ask(connection_t *connection) {
    connection->sent_ns = now_ns();
    connection->filled = 0;
    for (size_t sent = 0; sent < frame_bytes;) { /* blocking: a frame is far smaller than a socket's memory */
        ssize_t count = send(connection->socket, frame + sent, frame_bytes - sent, MSG_NOSIGNAL);
        if (count < 0) fail("send", strerror(errno));
        sent += (size_t)count;
    }
}

/* Whether the answer is whole. */
static int hear(connection_t *connection, size_t error_at) {
    ssize_t count = recv(connection->socket, connection->answer + connection->filled,
                         ANSWER_BYTES_MAX - connection->filled, 0);
    if (count <= 0) fail("receive", count ? strerror(errno) : "the other side has closed the connection");
    connection->filled += (size_t)count;
    if (connection->filled < 4) return 0;
    uint32_t size;
    memcpy(&size, connection->answer, 4);
    if (connection->filled < 4 + ntohl(size)) return 0;
    const unsigned char *error = connection->answer + 4 + error_at;
    if (error[0] || error[1]) {
        char why[32];
        snprintf(why, sizeof why, "refused, error %d", error[0] << 8 | error[1]);
        fail("produce", why);
    }
    return 1;
}

static void role_requests(void) {
    static connection_t connections[CONNECTIONS_MAX];
    struct epoll_event events[64];
    int count = (int)number("connections"), one = 1, poll = epoll_create1(0);
    size_t error_at = (size_t)number("error_at");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number("port"))};
    if (count < 1 || count > CONNECTIONS_MAX) fail("connections", "not so many");
    if (inet_pton(AF_INET, text("host"), &address.sin_addr) != 1) fail("host", "is not an address");
    read_frame();
    samples_t samples = samples_of(20 * 1000 * 1000);
    for (int i = 0; i < count; i++) {
        connections[i].socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connections[i].socket, (struct sockaddr *)&address, sizeof address)) fail("connect", strerror(errno));
        setsockopt(connections[i].socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].socket, &event);
    }
    say_ready();
    int64_t counted_ns = begun_ns + (int64_t)(number("skip_seconds") * 1e9);
    int64_t end_ns = counted_ns + (int64_t)(number("seconds") * 1e9), last_ns = counted_ns;
    int open = count;
    for (int i = 0; i < count; i++) ask(&connections[i]);
    while (open) {
        int ready = epoll_wait(poll, events, 64, SILENCE_MS_MAX);
        if (ready <= 0) fail("answers", "none comes");
        for (int i = 0; i < ready; i++) {
            connection_t *connection = events[i].data.ptr;
            if (!hear(connection, error_at)) continue;
            int64_t now = now_ns();
            if (connection->sent_ns >= counted_ns) add_sample(&samples, now - connection->sent_ns), last_ns = now;
            if (now < end_ns) ask(connection);
            else open--;
        }
    }
    int64_t answered = samples.count;
    print_outcome((last_ns - counted_ns) / 1e9, answered, answered * (int64_t)frame_bytes, &samples);
}

int main(int count, char **given) {
    static const struct { const char *name; void (*run)(void); } roles[] = {
        {"produce", role_produce}, {"pace", role_pace}, {"follow", role_follow},
        {"consume", role_consume}, {"requests", role_requests}};
    if (count < 3) fail("usage", "load_client LIBRDKAFKA ROLE name=value …");
    arguments = given + 3;
    open_librdkafka(given[1]);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(given[2], roles[i].name)) {
            roles[i].run();
            fflush(stdout);
            _exit(failed ? 1 : 0); /* librdkafka's orderly end would take longer than a round */
        }
    fail(given[2], "no such role");
}
