"""The scenario of clients/README.md."""

import os
from typing import Any, NoReturn, TypeVar

from strongroom_client import AuthenticatedClient
from strongroom_client.api.api_tokens import create_api_token, delete_api_token, rotate_api_token
from strongroom_client.api.audit import count_audit_events, export_audit_events, list_audit_events
from strongroom_client.api.billing import get_usage, list_plans
from strongroom_client.api.encryption_keys import list_encryption_keys, rotate_encryption_key
from strongroom_client.api.environments import create_environment, list_environments
from strongroom_client.api.members import (
    get_member_access,
    invite_member,
    list_invitations,
    list_members,
    send_invitation,
    withdraw_invitation,
)
from strongroom_client.api.organizations import get_organization
from strongroom_client.api.projects import create_project, delete_project, get_project, list_projects, update_project
from strongroom_client.api.secrets import (
    change_environment_secrets,
    compare_environment_secrets,
    delete_secrets,
    read_environment_name_history,
    read_environment_names,
    read_environment_secrets,
    read_environment_values,
    read_project_matrix,
    retrieve_secrets,
    search_names,
    store_secrets,
)
from strongroom_client.api.targets import create_target, get_target
from strongroom_client.api.users import get_user
from strongroom_client.api.versions import list_versions, purge_versions, restore_version
from strongroom_client.models import (
    Ability,
    AuditEventCountList,
    AuditEventList,
    ChangeAnswer,
    ChangeBody,
    ChangeBodySet,
    ChangedNames,
    CreatedToken,
    CreateEnvironmentBody,
    CreateProjectBody,
    CreateTargetBody,
    CreateTokenBody,
    DeleteBody,
    EncryptionKey,
    EnvironmentAnswer,
    EnvironmentList,
    EventName,
    FoundNameList,
    HistoryPolicy,
    InvitationList,
    InviteMemberBody,
    KeyHistoryAnswer,
    LastChange,
    Level,
    LevelDocument,
    ListVersionsBody,
    MatrixAnswer,
    MatrixCellState,
    MemberAccessAnswer,
    MemberList,
    NameHistory,
    OrganizationAnswer,
    PlanList,
    PrincipalAnswer,
    ProjectAnswer,
    ProjectList,
    PurgeAnswer,
    PurgeBody,
    ReadEnvironmentSecretsMerge,
    RestoreAnswer,
    RestoreBody,
    RetrieveAnswer,
    RetrieveBody,
    RetrieveBodyAction,
    Role,
    RotateAnswer,
    RotateBody,
    RotatedToken,
    RotateTokenBody,
    SecretDifferencesAnswer,
    SecretNameList,
    Secrets,
    SecretsAnswer,
    SendInvitationBody,
    SentInvitation,
    StoreAnswer,
    StoreBody,
    TargetAnswer,
    TokenPrincipal,
    UpdateProjectBody,
    UsageAnswer,
    Values,
    VersionPage,
)
from strongroom_client.types import Response, Unset

URL = os.environ["STRONGROOM_URL"]
ORGANIZATION = os.environ["STRONGROOM_ORGANIZATION"]
LEVEL = ("orbit", "backend", "live")
T = TypeVar("T")

client = AuthenticatedClient(base_url=URL, token=os.environ["STRONGROOM_TOKEN"])
steps = 0


def step(what: str) -> None:
    global steps
    steps += 1
    print(steps, what)


def fail(seen: object) -> NoReturn:
    raise SystemExit(f"step {steps}: {seen}")


def expect(holds: bool, seen: object = None) -> None:
    if not holds:
        fail(seen)


def good(answer: Response[Any], model: type[T]) -> T:
    """What was answered, which has to be good."""
    return answer.parsed if isinstance(answer.parsed, model) else fail(answer)


def empty(answer: Response[Any]) -> None:
    expect(answer.status_code == 204, answer)


def failed(answer: Response[Any], status: int, code: str) -> None:
    expect(answer.status_code == status and getattr(answer.parsed, "error", None) == code, answer)


def store(plaintext: str) -> Response[Any]:
    project, target, environment = LEVEL
    body = StoreBody(project=project, target=target, environment=environment, plaintext=plaintext)
    return store_secrets.sync_detailed(ORGANIZATION, client=client, body=body)


def read(merge: ReadEnvironmentSecretsMerge = ReadEnvironmentSecretsMerge.FALSE) -> SecretsAnswer:
    answer = read_environment_secrets.sync_detailed(ORGANIZATION, *LEVEL, client=client, decrypt=True, merge=merge)
    return good(answer, SecretsAnswer)


def document(of: Secrets) -> LevelDocument:
    levels = of.attributes.levels
    if isinstance(levels, Unset) or isinstance(levels.environment, Unset):
        fail(of)
    return levels.environment


def versions_of() -> VersionPage:
    project, target, environment = LEVEL
    body = ListVersionsBody(project=project, target=target, environment=environment)
    return good(list_versions.sync_detailed(ORGANIZATION, client=client, body=body), VersionPage)


step("read who the token is")
principal = good(get_user.sync_detailed(client=client), PrincipalAnswer)
expect(isinstance(principal.data, TokenPrincipal), principal)

step("read the organization")
own = good(get_organization.sync_detailed(ORGANIZATION, client=client), OrganizationAnswer)
expect(own.data.attributes.name == "Nimbus", own)

step("create a project")
new_project = CreateProjectBody(name="Orbit", slug="orbit")
project = good(
    create_project.sync_detailed(ORGANIZATION, client=client, body=new_project, idempotency_key="scenario"),
    ProjectAnswer,
)

step("create it again with the same Idempotency-Key: the same project")
again = good(
    create_project.sync_detailed(ORGANIZATION, client=client, body=new_project, idempotency_key="scenario"),
    ProjectAnswer,
)
expect(again.data.id == project.data.id, again)

step("create a target")
good(
    create_target.sync_detailed(ORGANIZATION, "orbit", client=client, body=CreateTargetBody(name="Backend")),
    TargetAnswer,
)

step("create an environment")
environment = good(
    create_environment.sync_detailed(
        ORGANIZATION,
        "orbit",
        "backend",
        client=client,
        body=CreateEnvironmentBody(name="Live", status="production"),
    ),
    EnvironmentAnswer,
)
expect(environment.data.attributes.slug == "live", environment)

step("list the environments of the target")
environments = good(
    list_environments.sync_detailed(ORGANIZATION, "orbit", "backend", client=client), EnvironmentList
)
expect(len(environments.data) == 1 and environments.meta.total == 1, environments)

step("read the ETag of the project")
tag = get_project.sync_detailed(ORGANIZATION, "orbit", client=client).headers["etag"]

step("rename the project that it is of")
renamed = good(
    update_project.sync_detailed(
        ORGANIZATION, "orbit", client=client, body=UpdateProjectBody(name="Orbiter"), if_match=tag
    ),
    ProjectAnswer,
)
expect(renamed.data.attributes.name == "Orbiter", renamed)

step("rename it by the ETag that it had: 412")
failed(
    update_project.sync_detailed(
        ORGANIZATION, "orbit", client=client, body=UpdateProjectBody(name="Satellite"), if_match=tag
    ),
    412,
    "precondition_failed",
)

step("store a document at the project")
good(
    store_secrets.sync_detailed(
        ORGANIZATION, client=client, body=StoreBody(project="orbit", plaintext="A=project\nB=project\n")
    ),
    StoreAnswer,
)

step("store a document at the environment")
first = good(store("A=first\n"), StoreAnswer).data.version or fail("no version")

step("read it decrypted")
expect(document(read().data).content == "A=first\n")

step("read it merged")
merged = read(ReadEnvironmentSecretsMerge.TRUE).data.attributes.merged
expect(not isinstance(merged, Unset) and merged.to_dict() == {"A": "first", "B": "project"}, merged)

step("store another document there")
good(store("A=second\n"), StoreAnswer)

step("list the versions, the newest first")
versions = versions_of()
expect(len(versions.data) == 2 and versions.data[1].id == first, versions)

step("restore the first version")
restored = good(
    restore_version.sync_detailed(ORGANIZATION, first, client=client, body=RestoreBody()), RestoreAnswer
)
expect(restored.data.restored_from == first, restored)

step("read it decrypted: the first document")
expect(document(read().data).content == "A=first\n")

step("rotate the key")
keep = RotateBody(history_policy=HistoryPolicy.KEEP)
rotated = good(
    rotate_encryption_key.sync_detailed(ORGANIZATION, "orbit", client=client, body=keep), RotateAnswer
)
expect(rotated.data.key.attributes.version == "2", rotated)

step("rotate it once more: 429")
limited = rotate_encryption_key.sync_detailed(ORGANIZATION, "orbit", client=client, body=keep)
failed(limited, 429, "rate_limit_exceeded")
expect(int(limited.headers["retry-after"]) > 0, limited)

step("list the keys")
keys = good(list_encryption_keys.sync_detailed(ORGANIZATION, "orbit", client=client), KeyHistoryAnswer)
expect(len(keys.data) == 2, keys)

step("read it decrypted under the new key")
expect(document(read().data).content == "A=first\n")

step("retrieve the document decrypted")


def retrieve(action: RetrieveBodyAction) -> Secrets | EncryptionKey:
    project, target, environment = LEVEL
    body = RetrieveBody(project=project, target=target, environment=environment, action=action)
    return good(retrieve_secrets.sync_detailed(ORGANIZATION, client=client, body=body), RetrieveAnswer).data


retrieved = retrieve(RetrieveBodyAction.DECRYPT)
expect(isinstance(retrieved, Secrets) and document(retrieved).content == "A=first\n", retrieved)

step("retrieve the key")
key = retrieve(RetrieveBodyAction.KEYRETRIEVE)
expect(isinstance(key, EncryptionKey) and key.attributes.version == 2)

step("change two names of the document")


def change(body: ChangeBody) -> ChangedNames:
    answer = change_environment_secrets.sync_detailed(ORGANIZATION, *LEVEL, client=client, body=body)
    return good(answer, ChangeAnswer).data


changed = change(ChangeBody(set_=ChangeBodySet.from_dict({"A": "third", "C": "new"})))
expect(changed.changed == ["A"] and changed.added == ["C"], changed)

step("remove one of them")
removed = change(ChangeBody(unset=["C"]))
expect(removed.removed == ["C"] and removed.version != changed.version, removed)

step("list the names, merged, without values")
names = good(
    read_environment_names.sync_detailed(ORGANIZATION, *LEVEL, client=client, merge=True), SecretNameList
)
expect(
    [(one.attributes.name, one.attributes.level, one.attributes.overrides) for one in names.data]
    == [("A", Level.ENVIRONMENT, [Level.PROJECT]), ("B", Level.PROJECT, [])],
    names,
)

step("find the levels that have a name")
found = good(search_names.sync_detailed(ORGANIZATION, client=client, search="a"), FoundNameList)
expect(len(found.data) == 2 and found.meta.next_ is None, found)
expect({one.attributes.environment for one in found.data} == {None, "live"}, found)

step("compare the project with the environment")
differences = good(
    compare_environment_secrets.sync_detailed(
        ORGANIZATION, *LEVEL, client=client, from_="project", to="environment", values=True
    ),
    SecretDifferencesAnswer,
).data.attributes
expect(differences.changed == ["A"] and differences.removed == ["B"], differences)
pairs = [] if isinstance(differences.values, Unset) else [one.to_dict() for one in differences.values]
expect(
    pairs == [{"name": "A", "from": "project", "to": "third"}, {"name": "B", "from": "project"}], differences
)

step("read the history of the removed name, the newest version first")
changes = good(
    read_environment_name_history.sync_detailed(ORGANIZATION, *LEVEL, client=client, name="C", values=True),
    NameHistory,
)
expect(
    [(one.id, one.attributes.value) for one in changes.data] == [(removed.version, None), (changed.version, "new")],
    changes,
)
expect(changes.meta.next_ is None, changes)

step("read the values")
values = good(read_environment_values.sync_detailed(ORGANIZATION, *LEVEL, client=client), Values)
expect(values.to_dict() == {"A": "third", "B": "project"}, values)

step("list the names of all levels")
matrix = good(read_project_matrix.sync_detailed(ORGANIZATION, "orbit", client=client), MatrixAnswer)
expect(len(matrix.data.attributes.levels) == 3 and matrix.meta.next_levels is None, matrix)
rows = matrix.data.attributes.names or []
expect([row.name for row in rows] == ["A", "B"], matrix)
expect(
    [(cell.state, cell.value_group) for cell in rows[0].cells]
    == [(MatrixCellState.SET, 1), (MatrixCellState.INHERITED, 1), (MatrixCellState.OVERRIDES, 2)],
    matrix,
)

step("plan a change without making it")
planned = good(
    change_environment_secrets.sync_detailed(
        ORGANIZATION,
        *LEVEL,
        client=client,
        body=ChangeBody(set_=ChangeBodySet.from_dict({"A": "fourth"})),
        dry_run=True,
    ),
    ChangeAnswer,
)
expect(planned.data.version is None and not planned.data.unchanged, planned)
levels = [] if isinstance(planned.dry_run, Unset) else planned.dry_run.levels
expect([one.names and one.names.changed for one in levels] == [["A"]], planned)

step("list the projects: the last change")
listed = good(list_projects.sync_detailed(ORGANIZATION, client=client), ProjectList)
last = listed.data[0].attributes.last_change
expect(isinstance(last, LastChange) and last.version == removed.version and last.created_by is not None, listed)

step("create a token that reads")
created = good(
    create_api_token.sync_detailed(
        ORGANIZATION,
        client=client,
        body=CreateTokenBody(name="Reader", abilities=[Ability.SECRET_READ]),
    ),
    CreatedToken,
)
reader = AuthenticatedClient(base_url=URL, token=created.token)

step("read with it: the document is encrypted")
encrypted = good(
    read_environment_secrets.sync_detailed(ORGANIZATION, *LEVEL, client=reader), SecretsAnswer
)
expect(document(encrypted.data).encrypted, encrypted)

step("store with it: 403")
failed(
    store_secrets.sync_detailed(
        ORGANIZATION, client=reader, body=StoreBody(project="orbit", plaintext="A=third\n")
    ),
    403,
    "insufficient_permissions",
)

step("give it another value")
value = good(
    rotate_api_token.sync_detailed(ORGANIZATION, created.api_key.id, client=client, body=RotateTokenBody()),
    RotatedToken,
)
expect(value.token != created.token)

step("read with the value that it had: 401")
failed(read_environment_secrets.sync_detailed(ORGANIZATION, *LEVEL, client=reader), 401, "unauthenticated")

step("delete the token")
empty(delete_api_token.sync_detailed(ORGANIZATION, created.api_key.id, client=client))

step("invite a person")
invited = good(
    invite_member.sync_detailed(
        ORGANIZATION, client=client, body=InviteMemberBody(email="ada@nimbus.example", role=Role.DEVELOPER)
    ),
    SentInvitation,
)

step("list the invitations")
invitations = good(list_invitations.sync_detailed(ORGANIZATION, client=client), InvitationList)
expect(any(one.attributes.email == "ada@nimbus.example" for one in invitations.data), invitations)

step("send the invitation again")
sent = good(
    send_invitation.sync_detailed(ORGANIZATION, invited.data.id, client=client, body=SendInvitationBody()),
    SentInvitation,
)
expect(sent.data.id == invited.data.id, sent)

step("withdraw the invitation")
empty(withdraw_invitation.sync_detailed(ORGANIZATION, invited.data.id, client=client))

step("list the plans: one allows more bytes than 32 bits count")
plans = good(list_plans.sync_detailed(client=client), PlanList)
expect(any((plan.attributes.max_bytes or 0) > 2**32 for plan in plans.data), plans)

step("read what is used")
usage = good(get_usage.sync_detailed(ORGANIZATION, client=client), UsageAnswer)
expect(usage.data.attributes.bytes_.used > 0, usage)
expect(len(usage.data.attributes.days) == 31, usage)

step("read what the owner may do")
member = good(list_members.sync_detailed(ORGANIZATION, client=client), MemberList).data[0]
access = good(
    get_member_access.sync_detailed(ORGANIZATION, member.id, client=client), MemberAccessAnswer
).data.attributes
expect(access.role == Role.OWNER and Ability.SECRET_DECRYPT in access.scopes and access.projects == [], access)

step("read a target that is not there: 404")
failed(get_target.sync_detailed(ORGANIZATION, "orbit", "nowhere", client=client), 404, "not_found")

step("store a document that does not parse: 422")
failed(
    store_secrets.sync_detailed(ORGANIZATION, client=client, body=StoreBody(project="orbit", plaintext="what")),
    422,
    "document_unreadable",
)

step("delete the document")
empty(
    delete_secrets.sync_detailed(
        ORGANIZATION, client=client, body=DeleteBody(project="orbit", target="backend", environment="live")
    )
)

step("purge its history")
purged = good(
    purge_versions.sync_detailed(
        ORGANIZATION,
        client=client,
        body=PurgeBody(project="orbit", target="backend", environment="live", confirmed=True),
    ),
    PurgeAnswer,
)
expect(purged.data.purged_count > 0, purged)

step("list the versions: none")
expect(versions_of().data == [])

step("list the audit events of what was stored")
events = good(
    list_audit_events.sync_detailed(ORGANIZATION, client=client, action=EventName.SECRET_STORE), AuditEventList
)
expect(len(events.data) == 5, events)

step("count the audit events of each day")
counts = good(count_audit_events.sync_detailed(ORGANIZATION, client=client), AuditEventCountList)
expect(len(counts.data) == 31 and any(one.attributes.count > 5 for one in counts.data), counts)

step("export the audit events of what was stored")
lines = good(
    export_audit_events.sync_detailed(ORGANIZATION, client=client, action=EventName.SECRET_STORE), str
)
expect(len(lines.splitlines()) == 5, lines)

step("delete the project")
empty(delete_project.sync_detailed(ORGANIZATION, "orbit", client=client))

print(f"{steps} steps")
