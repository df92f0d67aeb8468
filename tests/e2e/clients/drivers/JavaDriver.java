import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Apache Kafka's own Java client. Started from this source: {@code java -cp 'libs/*' JavaDriver.java BOOTSTRAP}. */
public final class JavaDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration STEP = Duration.ofMillis(100);
    private static final int TIMEOUT_S = 40;

    private final String bootstrap;
    private final Admin admin;
    private final Map<String, Member> members = new LinkedHashMap<>();

    /** A consumer, and the records that were polled and not yet asked for. */
    private record Member(KafkaConsumer<byte[], byte[]> consumer, List<Object> waiting) {}

    private JavaDriver(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of(
            "bootstrap.servers", bootstrap, "request.timeout.ms", 20000, "default.api.timeout.ms", TIMEOUT_S * 1000));
    }

    private static final class Refused extends RuntimeException {
        Refused(String message) {
            super(message);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // whatever else prints must not disturb the answers
        JavaDriver driver = new JavaDriver(arguments[0]);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(JSON.writeValueAsString(driver.reply(JSON.readTree(line))));
        }
        driver.reset();
        driver.admin.close(Duration.ofSeconds(1));
    }

    private Map<String, Object> reply(JsonNode command) {
        try {
            return Map.of("ok", answer(command));
        } catch (Exception thrown) {
            Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            if (error instanceof KafkaException || error instanceof Refused) {
                return Map.of("error", refusal(error));
            }
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            return Map.of("bug", trace.toString());
        }
    }

    private static Map<String, Object> refusal(Throwable error) {
        Errors known = Errors.forException(error);
        if (error instanceof OffsetOutOfRangeException || error instanceof NoOffsetForPartitionException) {
            known = Errors.OFFSET_OUT_OF_RANGE;
        }
        Map<String, Object> refusal = new HashMap<>();
        refusal.put("code", known == Errors.UNKNOWN_SERVER_ERROR ? null : known.code());
        refusal.put("message", error.toString());
        return refusal;
    }

    private Object answer(JsonNode command) throws Exception {
        String topic = command.path("topic").asText(null);
        String group = command.path("group").asText(null);
        return switch (command.get("op").asText()) {
            case "hello" -> Map.of("client", "Java kafka-clients " + version(), "lacks", Map.of());
            case "produce" -> Map.of("results", produce(command));
            case "open" -> open(command);
            case "poll" -> poll(command);
            case "settle" -> settle(command);
            case "commit" -> commit(command);
            case "committed" -> committed(command);
            case "close" -> close(command.get("consumer").asText());
            case "reset" -> reset();
            case "create_topic" -> createTopic(topic, command);
            case "delete_topic" -> done(admin.deleteTopics(List.of(topic)).all());
            case "list_topics" -> Map.of("topics", get(admin.listTopics().names()));
            case "describe_topic" -> Map.of(
                "partitions", get(admin.describeTopics(List.of(topic)).topicNameValues().get(topic)).partitions().size());
            case "create_partitions" -> done(admin.createPartitions(
                Map.of(topic, NewPartitions.increaseTo(command.get("count").asInt()))).all());
            case "alter_config" -> alterConfig(topic, command);
            case "describe_config" -> describeConfig(topic);
            case "delete_records" -> done(admin.deleteRecords(
                Map.of(partition(command), RecordsToDelete.beforeOffset(command.get("before").asLong()))).all());
            case "list_offsets" -> offset(listOffset(partition(command), command.get("at")));
            case "list_groups" -> Map.of(
                "groups", get(admin.listGroups().all()).stream().map(each -> each.groupId()).toList());
            case "describe_group" -> describeGroup(group);
            case "delete_group" -> done(admin.deleteConsumerGroups(List.of(group)).all());
            case "group_offsets" -> groupOffsets(group, partition(command));
            default -> throw new IllegalArgumentException("no such command: " + command);
        };
    }

    // --- producing ------------------------------------------------------------------------------------------------

    private List<Object> produce(JsonNode command) throws Exception {
        boolean idempotent = command.get("idempotent").asBoolean();
        Map<String, Object> config = Map.of(
            "bootstrap.servers", bootstrap,
            "compression.type", command.get("codec").asText(),
            "enable.idempotence", idempotent,
            "max.in.flight.requests.per.connection", idempotent ? 5 : 1, // else a retry may change the order
            "acks", command.get("acks").asText(),
            "linger.ms", 20,
            "request.timeout.ms", 20000,
            "delivery.timeout.ms", TIMEOUT_S * 1000);
        List<Object> results = new ArrayList<>();
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : command.get("records")) {
                Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
                var outgoing = new ProducerRecord<>(
                    command.get("topic").asText(), record.get("partition").asInt(), timestamp,
                    decode(record.get("key")), decode(record.get("value")));
                for (JsonNode header : record.get("headers")) {
                    outgoing.headers().add(header.get(0).asText(), decode(header.get(1)));
                }
                sent.add(producer.send(outgoing));
            }
            producer.flush();
            for (Future<RecordMetadata> each : sent) {
                results.add(result(each));
            }
        }
        return results;
    }

    private static Object result(Future<RecordMetadata> sent) throws Exception {
        try {
            RecordMetadata metadata = sent.get(TIMEOUT_S, TimeUnit.SECONDS);
            return Map.of("partition", metadata.partition(), "offset", metadata.offset());
        } catch (ExecutionException refused) {
            return Map.of("error", refusal(refused.getCause()));
        }
    }

    // --- consuming ------------------------------------------------------------------------------------------------

    private Object open(JsonNode command) {
        Map<String, Object> config = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap,
            "auto.offset.reset", command.get("reset").asText(),
            "enable.auto.commit", false,
            "session.timeout.ms", 45000,
            "heartbeat.interval.ms", 300,
            "fetch.max.wait.ms", 100,
            "request.timeout.ms", 20000,
            "default.api.timeout.ms", TIMEOUT_S * 1000));
        if (!command.get("group").isNull()) {
            config.put("group.id", command.get("group").asText());
        }
        if (!command.get("instance").isNull()) {
            config.put("group.instance.id", command.get("instance").asText());
        }
        var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        members.put(command.get("consumer").asText(), new Member(consumer, new ArrayList<>()));
        if (!command.get("topics").isNull()) {
            List<String> topics = new ArrayList<>();
            command.get("topics").forEach(each -> topics.add(each.asText()));
            consumer.subscribe(topics);
            return Map.of();
        }
        Map<TopicPartition, JsonNode> starts = new LinkedHashMap<>();
        command.get("assign").forEach(start -> starts.put(partition(start), start.get("at")));
        consumer.assign(starts.keySet());
        starts.forEach((where, at) -> seek(consumer, where, at));
        return Map.of();
    }

    private static void seek(KafkaConsumer<byte[], byte[]> consumer, TopicPartition where, JsonNode at) {
        if (at.isObject()) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(where, at.get("time").asLong())).get(where);
            if (found == null) {
                consumer.seekToEnd(List.of(where));
            } else {
                consumer.seek(where, found.offset());
            }
        } else if (at.isNumber()) {
            consumer.seek(where, at.asLong());
        } else if (at.asText().equals("earliest")) {
            consumer.seekToBeginning(List.of(where));
        } else {
            consumer.seekToEnd(List.of(where));
        }
    }

    private static void step(Member member) {
        for (ConsumerRecord<byte[], byte[]> record : member.consumer().poll(STEP)) {
            List<Object> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                List<String> pair = new ArrayList<>();
                pair.add(header.key());
                pair.add(encode(header.value()));
                headers.add(pair);
            }
            Map<String, Object> json = new HashMap<>();
            json.put("topic", record.topic());
            json.put("partition", record.partition());
            json.put("offset", record.offset());
            json.put("timestamp", record.timestamp());
            json.put("key", encode(record.key()));
            json.put("value", encode(record.value()));
            json.put("headers", headers);
            member.waiting().add(json);
        }
    }

    private Object poll(JsonNode command) {
        Member member = members.get(command.get("consumer").asText());
        int count = command.get("count").asInt();
        long deadline = deadline(command);
        while (member.waiting().size() < count && System.nanoTime() < deadline) {
            step(member);
        }
        List<Object> first = member.waiting().subList(0, Math.min(count, member.waiting().size()));
        List<Object> records = new ArrayList<>(first);
        first.clear();
        return Map.of("records", records);
    }

    private Object settle(JsonNode command) {
        int partitions = command.get("partitions").asInt();
        long deadline = deadline(command);
        while (true) {
            Map<String, List<Object>> assignments = new TreeMap<>();
            List<TopicPartition> held = new ArrayList<>();
            boolean allHold = true;
            for (JsonNode name : command.get("consumers")) {
                Collection<TopicPartition> assignment = members.get(name.asText()).consumer().assignment();
                held.addAll(assignment);
                allHold &= !assignment.isEmpty();
                assignments.put(name.asText(), new ArrayList<>(
                    assignment.stream().map(each -> List.of(each.topic(), each.partition())).toList()));
            }
            Set<TopicPartition> distinct = new HashSet<>(held);
            if (allHold && held.size() == partitions && distinct.size() == partitions) {
                return Map.of("assignments", assignments);
            }
            if (System.nanoTime() > deadline) {
                throw new Refused("the group did not settle on " + partitions + " partitions: " + assignments);
            }
            command.get("consumers").forEach(name -> step(members.get(name.asText())));
        }
    }

    private Object commit(JsonNode command) {
        var consumer = members.get(command.get("consumer").asText()).consumer();
        if (command.path("offsets").isArray()) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            command.get("offsets").forEach(each -> offsets.put(
                new TopicPartition(each.get(0).asText(), each.get(1).asInt()),
                new OffsetAndMetadata(each.get(2).asLong())));
            consumer.commitSync(offsets);
        } else {
            consumer.commitSync();
        }
        return Map.of();
    }

    private Object committed(JsonNode command) {
        TopicPartition where = partition(command);
        var consumer = members.get(command.get("consumer").asText()).consumer();
        OffsetAndMetadata found = consumer.committed(Set.of(where)).get(where);
        return offset(found == null ? -1 : found.offset());
    }

    private Object close(String name) {
        Member member = members.remove(name);
        if (member != null) {
            member.consumer().close();
        }
        return Map.of();
    }

    private Object reset() {
        List.copyOf(members.keySet()).forEach(this::close);
        return Map.of();
    }

    // --- administration -------------------------------------------------------------------------------------------

    private Object createTopic(String topic, JsonNode command) throws Exception {
        NewTopic wanted = new NewTopic(topic, command.get("partitions").asInt(), (short) 1);
        return done(admin.createTopics(List.of(wanted.configs(strings(command.get("configs"))))).all());
    }

    private Object alterConfig(String topic, JsonNode command) throws Exception {
        Collection<AlterConfigOp> changes = new ArrayList<>();
        strings(command.get("configs")).forEach((name, value) ->
            changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return done(admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
    }

    private Object describeConfig(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, Object> configs = new TreeMap<>();
        get(admin.describeConfigs(List.of(resource)).all()).get(resource).entries()
            .forEach(entry -> configs.put(entry.name(), entry.value()));
        return Map.of("configs", configs);
    }

    private long listOffset(TopicPartition where, JsonNode at) throws Exception {
        OffsetSpec spec = at.isObject() ? OffsetSpec.forTimestamp(at.get("time").asLong())
            : at.asText().equals("earliest") ? OffsetSpec.earliest() : OffsetSpec.latest();
        return get(admin.listOffsets(Map.of(where, spec)).partitionResult(where)).offset();
    }

    private Object describeGroup(String group) throws Exception {
        var found = get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
        return Map.of("state", found.groupState().toString(), "members", found.members().size());
    }

    private Object groupOffsets(String group, TopicPartition where) throws Exception {
        OffsetAndMetadata found = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(where);
        return offset(found == null ? -1 : found.offset());
    }

    // --- small things ---------------------------------------------------------------------------------------------

    private static String version() throws Exception {
        Properties properties = new Properties();
        try (InputStream file = Admin.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private static Object done(KafkaFuture<?> future) throws Exception {
        get(future);
        return Map.of();
    }

    private static Map<String, Object> offset(long offset) {
        Map<String, Object> answer = new HashMap<>();
        answer.put("offset", offset < 0 ? null : offset);
        return answer;
    }

    private static TopicPartition partition(JsonNode node) {
        return new TopicPartition(node.get("topic").asText(), node.get("partition").asInt());
    }

    private static Map<String, String> strings(JsonNode node) {
        Map<String, String> strings = new TreeMap<>();
        node.fields().forEachRemaining(entry -> strings.put(entry.getKey(), entry.getValue().asText()));
        return strings;
    }

    private static long deadline(JsonNode command) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(command.get("timeout_ms").asLong());
    }

    private static byte[] decode(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String encode(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }
}
