import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;
import strongroom.ApiClient;
import strongroom.ApiException;
import strongroom.api.ApiTokensApi;
import strongroom.api.AuditApi;
import strongroom.api.BillingApi;
import strongroom.api.EncryptionKeysApi;
import strongroom.api.EnvironmentsApi;
import strongroom.api.MembersApi;
import strongroom.api.OrganizationsApi;
import strongroom.api.ProjectsApi;
import strongroom.api.SecretsApi;
import strongroom.api.TargetsApi;
import strongroom.api.UsersApi;
import strongroom.api.VersionsApi;
import strongroom.model.*;

/** The scenario of clients/README.md. */
public class Scenario {
  private static final String URL = System.getenv("STRONGROOM_URL");
  private static final String ORGANIZATION = System.getenv("STRONGROOM_ORGANIZATION");
  private static final String PROJECT = "orbit";
  private static final String TARGET = "backend";
  private static final String ENVIRONMENT = "live";

  private static final ApiClient client = clientOf(System.getenv("STRONGROOM_TOKEN"));
  private static final ProjectsApi projects = new ProjectsApi(client);
  private static final SecretsApi secrets = new SecretsApi(client);
  private static final VersionsApi versions = new VersionsApi(client);
  private static final EncryptionKeysApi keys = new EncryptionKeysApi(client);
  private static int steps = 0;

  private interface Call {
    void run() throws ApiException;
  }

  private static ApiClient clientOf(String token) {
    ApiClient client = new ApiClient();
    client.updateBaseUri(URL);
    client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + token));
    return client;
  }

  private static void step(String what) {
    steps++;
    System.out.println(steps + " " + what);
  }

  private static void expect(boolean holds, Object seen) {
    if (!holds) throw new IllegalStateException("step " + steps + ": " + seen);
  }

  /** The answer to a call that has to be refused. */
  private static ApiException refused(int status, String code, Call call) throws ApiException {
    try {
      call.run();
    } catch (ApiException refusal) {
      expect(refusal.getCode() == status, refusal);
      expect(refusal.getResponseBody().contains("\"error\":\"" + code + "\""), refusal);
      return refusal;
    }
    throw new IllegalStateException("step " + steps + ": not refused");
  }

  private static StoreBody document(String plaintext) {
    return new StoreBody().project(PROJECT).target(TARGET).environment(ENVIRONMENT).plaintext(plaintext);
  }

  private static StoreAnswer store(StoreBody body) throws ApiException {
    return secrets.storeSecrets(ORGANIZATION, body, null, null, null, null);
  }

  private static SecretsAttributes read(SecretsApi by, Boolean decrypt, String merge) throws ApiException {
    return by.readEnvironmentSecrets(ORGANIZATION, PROJECT, TARGET, ENVIRONMENT, decrypt, merge, null, null, null)
        .getData().getAttributes();
  }

  private static String content() throws ApiException {
    return read(secrets, true, null).getLevels().getEnvironment().getContent();
  }

  private static Retrieved retrieve(RetrieveBody.ActionEnum action) throws ApiException {
    RetrieveBody body = new RetrieveBody().project(PROJECT).target(TARGET).environment(ENVIRONMENT).action(action);
    return secrets.retrieveSecrets(ORGANIZATION, body).getData();
  }

  private static List<Version> listVersions() throws ApiException {
    ListVersionsBody body = new ListVersionsBody().project(PROJECT).target(TARGET).environment(ENVIRONMENT);
    return versions.listVersions(ORGANIZATION, body).getData();
  }

  private static ChangeAnswer change(ChangeBody body, Boolean dryRun) throws ApiException {
    return secrets.changeEnvironmentSecrets(
        ORGANIZATION, PROJECT, TARGET, ENVIRONMENT, body, dryRun, null, null, null);
  }

  private static ProjectAnswer createProject() throws ApiException {
    return projects.createProject(ORGANIZATION, new CreateProjectBody().name("Orbit").slug(PROJECT), "scenario");
  }

  private static ProjectAnswer rename(String name, String tag) throws ApiException {
    return projects.updateProject(ORGANIZATION, PROJECT, new UpdateProjectBody().name(name), tag, null);
  }

  private static RotateAnswer rotate() throws ApiException {
    RotateBody body = new RotateBody().historyPolicy(HistoryPolicy.KEEP);
    return keys.rotateEncryptionKey(ORGANIZATION, PROJECT, body, null);
  }

  public static void main(String[] args) throws Exception {
    step("read who the token is");
    PrincipalAnswer principal = new UsersApi(client).getUser();
    expect(principal.getData().getActualInstance() instanceof TokenPrincipal, principal);

    step("read the organization");
    OrganizationAnswer own = new OrganizationsApi(client).getOrganization(ORGANIZATION, null);
    expect(own.getData().getAttributes().getName().equals("Nimbus"), own);

    step("create a project");
    ProjectAnswer project = createProject();

    step("create it again with the same Idempotency-Key: the same project");
    expect(createProject().getData().getId().equals(project.getData().getId()), project);

    step("create a target");
    TargetsApi targets = new TargetsApi(client);
    targets.createTarget(ORGANIZATION, PROJECT, new CreateTargetBody().name("Backend"), null);

    step("create an environment");
    EnvironmentsApi environments = new EnvironmentsApi(client);
    EnvironmentAnswer environment = environments.createEnvironment(
        ORGANIZATION, PROJECT, TARGET, new CreateEnvironmentBody().name("Live").status("production"), null);
    expect(environment.getData().getAttributes().getSlug().equals(ENVIRONMENT), environment);

    step("list the environments of the target");
    EnvironmentList list = environments.listEnvironments(ORGANIZATION, PROJECT, TARGET, null, null, null, null, null);
    expect(list.getData().size() == 1 && list.getMeta().getTotal() == 1, list);

    step("read the ETag of the project");
    String tag = projects.getProjectWithHttpInfo(ORGANIZATION, PROJECT, null).getHeaders().get("etag").get(0);

    step("rename the project that it is of");
    ProjectAnswer renamed = rename("Orbiter", tag);
    expect(renamed.getData().getAttributes().getName().equals("Orbiter"), renamed);

    step("rename it by the ETag that it had: 412");
    refused(412, "precondition_failed", () -> rename("Satellite", tag));

    step("store a document at the project");
    store(new StoreBody().project(PROJECT).plaintext("A=project\nB=project\n"));

    step("store a document at the environment");
    String first = store(document("A=first\n")).getData().getVersion();
    expect(first != null, first);

    step("read it decrypted");
    expect(content().equals("A=first\n"), content());

    step("read it merged");
    Map<String, String> merged = read(secrets, true, "true").getMerged();
    expect(merged.equals(Map.of("A", "first", "B", "project")), merged);

    step("store another document there");
    store(document("A=second\n"));

    step("list the versions, the newest first");
    List<Version> history = listVersions();
    expect(history.size() == 2 && history.get(1).getId().equals(first), history);

    step("restore the first version");
    RestoreAnswer restored = versions.restoreVersion(ORGANIZATION, first, new RestoreBody(), null, null, null, null);
    expect(restored.getData().getRestoredFrom().equals(first), restored);

    step("read it decrypted: the first document");
    expect(content().equals("A=first\n"), content());

    step("rotate the key");
    RotateAnswer rotated = rotate();
    expect(rotated.getData().getKey().getAttributes().getVersion().equals("2"), rotated);

    step("rotate it once more: 429");
    ApiException limited = refused(429, "rate_limit_exceeded", Scenario::rotate);
    expect(limited.getResponseHeaders().firstValueAsLong("retry-after").orElse(0) > 0, limited);

    step("list the keys");
    KeyHistoryAnswer known = keys.listEncryptionKeys(ORGANIZATION, PROJECT, null, null);
    expect(known.getData().size() == 2, known);

    step("read it decrypted under the new key");
    expect(content().equals("A=first\n"), content());

    step("retrieve the document decrypted");
    Retrieved retrieved = retrieve(RetrieveBody.ActionEnum.DECRYPT);
    expect(retrieved.getActualInstance() instanceof Secrets document
        && document.getAttributes().getLevels().getEnvironment().getContent().equals("A=first\n"), retrieved);

    step("retrieve the key");
    Retrieved key = retrieve(RetrieveBody.ActionEnum.KEY_RETRIEVE);
    expect(key.getActualInstance() instanceof EncryptionKey active && active.getAttributes().getVersion() == 2, "");

    step("change two names of the document");
    ChangedNames changed = change(new ChangeBody().set(Map.of("A", "third", "C", "new")), null).getData();
    expect(changed.getChanged().equals(List.of("A")) && changed.getAdded().equals(List.of("C")), changed);

    step("remove one of them");
    ChangedNames removed = change(new ChangeBody().unset(List.of("C")), null).getData();
    expect(removed.getRemoved().equals(List.of("C")) && !removed.getVersion().equals(changed.getVersion()), removed);

    step("list the names, merged, without values");
    SecretNameList names =
        secrets.readEnvironmentNames(ORGANIZATION, PROJECT, TARGET, ENVIRONMENT, true, null, null, null);
    expect(names.getMeta().getTotal() == 2, names);
    SecretNameAttributes overriding = names.getData().get(0).getAttributes();
    expect(overriding.getName().equals("A") && overriding.getLevel() == Level.ENVIRONMENT
        && overriding.getOverrides().equals(List.of(Level.PROJECT)), names);
    SecretNameAttributes inherited = names.getData().get(1).getAttributes();
    expect(inherited.getName().equals("B") && inherited.getLevel() == Level.PROJECT, names);

    step("find the levels that have a name");
    FoundNameList found = secrets.searchNames(ORGANIZATION, "a", null, null);
    expect(found.getData().size() == 2 && found.getMeta().getNext() == null, found);
    expect(found.getData().stream().anyMatch(one -> one.getAttributes().getTarget() == null), found);
    expect(found.getData().stream().anyMatch(one -> ENVIRONMENT.equals(one.getAttributes().getEnvironment())), found);

    step("compare the project with the environment");
    SecretDifferencesAttributes differences = secrets.compareEnvironmentSecrets(
        ORGANIZATION, PROJECT, TARGET, ENVIRONMENT, "project", "environment", null, true).getData().getAttributes();
    expect(differences.getChanged().equals(List.of("A")) && differences.getRemoved().equals(List.of("B")), differences);
    expect(differences.getValues().equals(List.of(
        new DifferentValue().name("A").from("project").to("third"),
        new DifferentValue().name("B").from("project"))), differences);

    step("read the history of the removed name, the newest version first");
    NameHistory changes = secrets.readEnvironmentNameHistory(
        ORGANIZATION, PROJECT, TARGET, ENVIRONMENT, "C", true, null);
    expect(changes.getData().size() == 2 && changes.getMeta().getNext() == null, changes);
    NameChange removal = changes.getData().get(0);
    expect(removal.getId().equals(removed.getVersion()) && removal.getAttributes().getValue() == null, changes);
    NameChange addition = changes.getData().get(1);
    expect(addition.getId().equals(changed.getVersion()) && addition.getAttributes().getValue().equals("new"), changes);

    step("read the values");
    Map<String, String> values = secrets.readEnvironmentValues(ORGANIZATION, PROJECT, TARGET, ENVIRONMENT, null, null);
    expect(values.equals(Map.of("A", "third", "B", "project")), values);

    step("list the names of all levels");
    MatrixAnswer matrix = secrets.readProjectMatrix(ORGANIZATION, PROJECT, null, null, null, null, null, null, null, null);
    expect(matrix.getData().getAttributes().getLevels().size() == 3 && matrix.getMeta().getNextLevels() == null, matrix);
    MatrixName row = matrix.getData().getAttributes().getNames().get(0);
    MatrixCell lowest = row.getCells().get(2);
    expect(lowest.getState() == MatrixCell.StateEnum.OVERRIDES && lowest.getValueGroup() == 2, row);
    expect(row.getCells().get(1).getState() == MatrixCell.StateEnum.INHERITED, row);

    step("plan a change without making it");
    ChangeAnswer planned = change(new ChangeBody().set(Map.of("A", "fourth")), true);
    expect(planned.getData().getVersion() == null && !planned.getData().getUnchanged(), planned);
    expect(planned.getDryRun().getLevels().get(0).getNames().getChanged().equals(List.of("A")), planned);

    step("list the projects: the last change");
    LastChange last = projects.listProjects(ORGANIZATION, null, null, null, null, null)
        .getData().get(0).getAttributes().getLastChange();
    expect(last.getVersion().equals(removed.getVersion()) && last.getCreatedBy() != null, last);

    step("create a token that reads");
    ApiTokensApi tokens = new ApiTokensApi(client);
    CreateTokenBody reads = new CreateTokenBody().name("Reader").abilities(List.of(Ability.SECRET_READ));
    CreatedToken created = tokens.createApiToken(ORGANIZATION, reads, null);
    String id = created.getApiKey().getId();
    SecretsApi reader = new SecretsApi(clientOf(created.getToken()));

    step("read with it: the document is encrypted");
    expect(read(reader, null, null).getLevels().getEnvironment().getEncrypted(), created.getApiKey());

    step("store with it: 403");
    refused(403, "insufficient_permissions",
        () -> reader.storeSecrets(ORGANIZATION, document("A=third\n"), null, null, null, null));

    step("give it another value");
    RotatedToken value = tokens.rotateApiToken(ORGANIZATION, id, new RotateTokenBody(), null);
    expect(!value.getToken().equals(created.getToken()), value.getApiKey());

    step("read with the value that it had: 401");
    refused(401, "unauthenticated", () -> read(reader, null, null));

    step("delete the token");
    tokens.deleteApiToken(ORGANIZATION, id);

    step("invite a person");
    MembersApi members = new MembersApi(client);
    InviteMemberBody person = new InviteMemberBody().email("ada@nimbus.example").role(Role.DEVELOPER);
    Invitation invitation = members.inviteMember(ORGANIZATION, person, null).getData();
    expect(invitation.getAttributes().getRole() == Role.DEVELOPER, invitation);

    step("list the invitations");
    List<Invitation> invitations = members.listInvitations(ORGANIZATION, null, null).getData();
    expect(invitations.stream().anyMatch(one -> one.getId().equals(invitation.getId())), invitations);

    step("send the invitation again");
    members.sendInvitation(ORGANIZATION, invitation.getId(), null, Map.of());

    step("withdraw the invitation");
    members.withdrawInvitation(ORGANIZATION, invitation.getId(), null, null);

    step("list the plans: one allows more bytes than 32 bits count");
    BillingApi billing = new BillingApi(client);
    List<CataloguePlan> plans = billing.listPlans().getData();
    expect(plans.stream().map(plan -> plan.getAttributes().getMaxBytes()).anyMatch(most -> most != null && most > 1L << 32),
        plans);

    step("read what is used");
    UsageAnswer usage = billing.getUsage(ORGANIZATION);
    expect(usage.getData().getAttributes().getBytes().getUsed() > 0, usage);
    expect(usage.getData().getAttributes().getDays().size() == 31, usage);

    step("read what the owner may do");
    String member = members.listMembers(ORGANIZATION, null, null, null, null, null).getData().get(0).getId();
    MemberAccessAttributes access = members.getMemberAccess(ORGANIZATION, member, null, null).getData().getAttributes();
    expect(access.getRole() == Role.OWNER && access.getProjects().isEmpty(), access);
    expect(access.getScopes().contains(Ability.SECRET_DECRYPT), access);

    step("read a target that is not there: 404");
    refused(404, "not_found", () -> targets.getTarget(ORGANIZATION, PROJECT, "nowhere", null));

    step("store a document that does not parse: 422");
    refused(422, "document_unreadable", () -> store(document("what")));

    step("delete the document");
    DeleteBody gone = new DeleteBody().project(PROJECT).target(TARGET).environment(ENVIRONMENT);
    secrets.deleteSecrets(ORGANIZATION, gone, null, null, null, null);

    step("purge its history");
    PurgeBody all = new PurgeBody().project(PROJECT).target(TARGET).environment(ENVIRONMENT)
        .confirmed(true);
    PurgeAnswer purged = versions.purgeVersions(ORGANIZATION, all, null);
    expect(purged.getData().getPurgedCount() > 0, purged);

    step("list the versions: none");
    expect(listVersions().isEmpty(), listVersions());

    step("list the audit events of what was stored");
    AuditEventList events = new AuditApi(client).listAuditEvents(
        ORGANIZATION, null, EventName.SECRET_STORE, null, null, null, null, null, null, null, null, null);
    expect(events.getData().size() == 5, events);

    step("count the audit events of each day");
    List<AuditEventCount> counts =
        new AuditApi(client).countAuditEvents(ORGANIZATION, null, null, null, null, null, null, null, null).getData();
    expect(counts.size() == 31 && counts.stream().anyMatch(one -> one.getAttributes().getCount() > 5), counts);

    step("export the audit events of what was stored");
    // The generated method parses the response as JSON.
    HttpRequest exports = HttpRequest.newBuilder(
        URI.create(URL + "/api/v1/" + ORGANIZATION + "/audit-events/export?action=secret.store"))
        .header("Authorization", "Bearer " + System.getenv("STRONGROOM_TOKEN")).build();
    HttpResponse<String> lines = HttpClient.newHttpClient().send(exports, HttpResponse.BodyHandlers.ofString());
    expect(lines.statusCode() == 200 && lines.body().lines().count() == 5, lines.body());

    step("delete the project");
    projects.deleteProject(ORGANIZATION, PROJECT, null, null);

    System.out.println(steps + " steps");
  }
}
