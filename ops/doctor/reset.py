"""The reset of an application: it asks the log, and carries a plan out.

Rules of this file: it looks, and carries out a plan of `standfast.ops.doctor.reset_plan` in its order. It refuses while
any process runs the application. A directory is moved before it is removed, so that a killed reset leaves no half of a
directory where an application would open it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from standfast.ops.doctor.reset_plan import LocalStep, ResetPlan, Target, make_plan
from standfast.replication.log import Committed, Log
from standfast.replication.metadata_parts import source_offsets
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.topics.app_topics import SOURCE_OFFSETS, app_topics, is_internal
from standfast.replication.topics.claims import claimants
from standfast.store.errors import InvalidRequest, NotReady
from standfast.store.names import few
from standfast.store.task.state_dir import StateDir

ASIDE = ".reset"


def look(
    log: Log,
    app: str,
    *,
    known: Iterable[str],
    sources: Sequence[str],
    targets: Sequence[Target],
    local: LocalStep | None,
) -> ResetPlan:
    """The plan for an application as it is now. `known` are the topics of its definitions.

    Raises NotReady while it runs, BadConfig for targets that do not fit, InvalidRequest for an absent source topic.
    """
    refuse_running(log, app)
    committed = source_offsets(log.group(app).committed())
    # An offset of this group proves whose source it is, where names alone leave a doubt: rows must not go without it.
    own = {
        *known,
        *(at.topic for at in committed if at.topic.endswith(SOURCE_OFFSETS) and is_internal(f"{app}-", at.topic)),
    }
    infos = log.admin.topics()
    survey_names = [info.name for info in infos]
    groups = log.admin.groups()
    internal = {info.name: info.topic_id for info in infos if is_internal(f"{app}-", info.name)}
    claimed = claimants(log, app, internal)
    between = app_topics(app, survey_names, groups=groups, known=own, sources=sources, claimed=claimed).between
    inputs = {*sources, *(at.topic for at in committed)} - set(between)
    found = app_topics(app, survey_names, groups=groups, known=own, sources=inputs, claimed=claimed)
    survey = log.admin.survey([*inputs, *found.members])
    bounds: dict[TopicPartition, Bounds | None] = {}
    for name in sorted(inputs):
        topic = survey.topics[name]
        if topic is not None:
            partitions = [TopicPartition(name, number) for number in range(topic.info.partitions)]
            bounds |= log.reader().bounds(partitions)
        elif name in sources:
            raise InvalidRequest(f"--source {name}: log {log.address} has no such topic")
        elif not survey.brokers:
            # Under an external consumer the sources may be in another log. Not on Kafka, which deletes the offsets of
            # a deleted topic.
            bounds |= {at: None for at in committed if at.topic == name}
    members = [name for name in found.members if survey.topics[name] is not None]
    return make_plan(
        app,
        topics=found,
        existing=[*survey_names, *members],
        bounds=bounds,
        committed=committed,
        targets=targets,
        local=local,
    )


def refuse_running(log: Log, app: str) -> None:
    """Raise NotReady while the application has live members or consumers."""
    # Both, because a consumer of another program in the group holds no lease of ours.
    group = log.group(app)
    members = [member.member_id for member in group.view().members]
    group.close()
    consumers = log.admin.consumers(app)
    if members or consumers:
        who = few([*(f"instance {one}" for one in members), *(f"consumer {one}" for one in consumers)], "; ")
        raise NotReady(
            f"application {app!r} is running ({who}): stop every instance first; one that was killed is forgotten "
            "after its lease (1.5 s unless set), a consumer after its session timeout"
        )


def carry_out(log: Log, plan: ResetPlan, on_step: Callable[[], object]) -> None:
    """Carry the plan out. Raises Held if the state directory has an owner, NotReady if the application runs."""
    state = None
    if plan.local is not None:
        path = Path(plan.local.path)
        state = StateDir(path.parent, plan.app)
    try:
        # Again, and under the lock: the plan was shown to a person, and an instance may have started since.
        refuse_running(log, plan.app)
        # Before the deletes: a user without the right to commit has then deleted nothing.
        if plan.offsets:
            group = log.group(plan.app)
            pieces = {at: one for step in plan.offsets for at, one in step.pieces.items()}
            group.commit(pieces | {step.at: Committed(step.after, step.metadata) for step in plan.offsets})
            for _ in plan.offsets:
                on_step()
        for step in plan.deletes:
            log.admin.delete_topic(step.topic)
            on_step()
        if plan.deletes:  # on Kafka they are gone with the members topic
            with closing(log.group(plan.app)) as group:
                group.note(dict.fromkeys(group.notes()))
        if plan.local is not None:
            _clear(plan.local)
            on_step()
    finally:
        if state is not None:
            state.close()


def local_step(state_dir: Path, app: str, action: str, stamp: str) -> LocalStep | None:
    """The step for `<state_dir>/<app>`; None if it is to be kept, or is absent."""
    path = state_dir / app
    if action == "keep" or not path.is_dir():
        return None
    if action == "remove":
        return LocalStep(str(path), "remove")
    return LocalStep(str(path), "aside", str(state_dir / ASIDE / f"{app}.{stamp}"))


def _clear(step: LocalStep) -> None:
    path = Path(step.path)
    target = Path(step.target) if step.target else path.parent / ASIDE / f"{path.name}.removing"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if step.action == "remove" and target.exists():
        shutil.rmtree(target)  # left by a killed reset
    path.rename(target)
    if step.action == "remove":
        shutil.rmtree(target)
