"""`snapshot-debezium`: a copy of existing documents, beside Debezium's engine without Kafka."""

from bench.copies import Documents
from bench.programs import Program, ReaderFailed
from bench.readers import CheckFailed
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import DATABASE, Settings
from bench.snapshot import by_feedmux
from bench.stage import Stage

_FOLDER = "bench/debezium"
DEBEZIUM = Program(
    ("mvn", "-q", "-B", "-f", _FOLDER, "dependency:copy-dependencies", "-DoutputDirectory=target/lib"),
    ("java", "-cp", f"{_FOLDER}/target/lib/*", f"{_FOLDER}/CopyCollection.java"),
    ("java", "mvn"),
    ready_timeout_s=600.0,  # it reads everything once before it is ready
)


async def run(settings: Settings) -> Result:
    if DEBEZIUM.missing:
        raise ReaderFailed(f"{', '.join(DEBEZIUM.missing)} missing")
    progress("fetching Debezium")
    await DEBEZIUM.make()
    documents = Documents("documents", settings.size(200_000, 50_000, 2_000), 500)
    ours: list[Figures] = []
    theirs: list[Figures] = []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            documents.load(client)
        for number in range(settings.runs):
            ours.append(await by_feedmux(stage, documents, "500_b", f"copy-{number}"))
            theirs.append(await _by_debezium(stage, documents))
            shown = [f"{each[-1]['documents_per_s_500_b']:,.0f}" for each in (ours, theirs)]
            progress(f"run {number + 1}: a copy {shown[0]}, Debezium {shown[1]} documents/s")
    rates = [[each["documents_per_s_500_b"] for each in side] for side in (ours, theirs)]
    ratio = median_ratio(*rates)
    return Result(
        f"snapshot-debezium: a copy of {documents.count:,} documents of {documents.size_bytes:,} bytes",
        "feedmux, durable, raw, acked",
        "Debezium's engine, undecoded",
        medians(ours),
        medians(theirs),
        ratio,
        "documents/s of a copy ÷ documents/s of Debezium, median of the runs' ratios",
        [Target("ratio", "at_least", 1.0, ratio)],
        ["Debezium: records in memory for a function in the same process, positions in memory, default settings"],
    )


async def _by_debezium(stage: Stage, documents: Documents) -> Figures:
    before = stage.cpu()
    read = await DEBEZIUM.read(
        "--uri", stage.mongo.uri, "--namespace", f"{DATABASE}.{documents.collection}", "--count", str(documents.count)
    )
    used = stage.cpu() - before
    if read["count"] != documents.count:
        raise CheckFailed(f"Debezium read {read['count']} documents, not {documents.count}")
    return {
        "documents_per_s_500_b": documents.count / read["elapsed_s"],
        "client_cpu_us_per_document_500_b": read["cpu_s"] * 1e6 / documents.count,
        # It has read everything twice.
        "mongod_cpu_us_per_document_500_b": used.mongod * 1e6 / documents.count / 2,
    }
