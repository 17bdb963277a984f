// The scenario of clients/README.md.
package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"

	"scenario/strongroom"
)

var (
	url          = os.Getenv("STRONGROOM_URL")
	organization = os.Getenv("STRONGROOM_ORGANIZATION")
	steps        = 0
)

const project, target, environment = "orbit", "backend", "live"

func step(what string) {
	steps++
	fmt.Println(steps, what)
}

func expect(holds bool, seen ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, "step %d: %v\n", steps, seen)
		os.Exit(1)
	}
}

// What every answer of the client has.
type answer interface{ StatusCode() int }

func must[T any](value T, err error) T {
	expect(err == nil, err)
	return value
}

// What was answered, which has to be good.
func good[T any](value *T, of answer) T {
	expect(value != nil, of.StatusCode())
	return *value
}

func empty(of answer) { expect(of.StatusCode() == http.StatusNoContent, of.StatusCode()) }

func refused(of answer, status int) { expect(of.StatusCode() == status, of.StatusCode()) }

func code[T ~string](seen T, wanted string) { expect(string(seen) == wanted, seen) }

func clientOf(token string) *strongroom.ClientWithResponses {
	return must(strongroom.NewClientWithResponses(url, strongroom.WithRequestEditorFn(
		func(_ context.Context, request *http.Request) error {
			request.Header.Set("Authorization", "Bearer "+token)
			return nil
		})))
}

func main() {
	ctx := context.Background()
	client := clientOf(os.Getenv("STRONGROOM_TOKEN"))

	store := func(plaintext string) strongroom.StoreAnswer {
		stored := must(client.StoreSecretsWithResponse(ctx, organization, nil, strongroom.StoreBody{
			Project: project, Target: new(target), Environment: new(environment), Plaintext: &plaintext,
		}))
		return good(stored.JSON200, stored)
	}
	read := func(
		by *strongroom.ClientWithResponses, params *strongroom.ReadEnvironmentSecretsParams,
	) *strongroom.ReadEnvironmentSecretsResponse {
		return must(by.ReadEnvironmentSecretsWithResponse(ctx, organization, project, target, environment, params))
	}
	content := func() string {
		decrypted := read(client, &strongroom.ReadEnvironmentSecretsParams{Decrypt: new(true)})
		return good(decrypted.JSON200, decrypted).Data.Attributes.Levels.Environment.Content
	}
	listVersions := func() []strongroom.Version {
		listed := must(client.ListVersionsWithResponse(ctx, organization, strongroom.ListVersionsBody{
			Project: project, Target: new(target), Environment: new(environment),
		}))
		return good(listed.JSON200, listed).Data
	}

	step("read who the token is")
	user := must(client.GetUserWithResponse(ctx))
	principal := good(user.JSON200, user).Data
	expect(must(principal.Discriminator()) == "api-tokens", principal)

	step("read the organization")
	own := must(client.GetOrganizationWithResponse(ctx, organization, nil))
	expect(good(own.JSON200, own).Data.Attributes.Name == "Nimbus", own)

	step("create a project")
	createProject := func() strongroom.Project {
		made := must(client.CreateProjectWithResponse(ctx, organization,
			&strongroom.CreateProjectParams{IdempotencyKey: new("scenario")},
			strongroom.CreateProjectBody{Name: "Orbit", Slug: new(project)}))
		return good(made.JSON201, made).Data
	}
	first := createProject()

	step("create it again with the same Idempotency-Key: the same project")
	expect(createProject().Id == first.Id)

	step("create a target")
	madeTarget := must(client.CreateTargetWithResponse(ctx, organization, project, nil,
		strongroom.CreateTargetBody{Name: "Backend"}))
	good(madeTarget.JSON201, madeTarget)

	step("create an environment")
	madeEnvironment := must(client.CreateEnvironmentWithResponse(ctx, organization, project, target, nil,
		strongroom.CreateEnvironmentBody{Name: "Live", Status: new("production")}))
	expect(good(madeEnvironment.JSON201, madeEnvironment).Data.Attributes.Slug == environment)

	step("list the environments of the target")
	environments := must(client.ListEnvironmentsWithResponse(ctx, organization, project, target, nil))
	expect(len(good(environments.JSON200, environments).Data) == 1 && environments.JSON200.Meta.Total == 1)

	step("read the ETag of the project")
	found := must(client.GetProjectWithResponse(ctx, organization, project, nil))
	good(found.JSON200, found)
	tag := found.Headers200.ETag

	step("rename the project that it is of")
	rename := func(name string) *strongroom.UpdateProjectResponse {
		return must(client.UpdateProjectWithResponse(ctx, organization, project,
			&strongroom.UpdateProjectParams{IfMatch: tag}, strongroom.UpdateProjectBody{Name: &name}))
	}
	renamed := rename("Orbiter")
	expect(good(renamed.JSON200, renamed).Data.Attributes.Name == "Orbiter")

	step("rename it by the ETag that it had: 412")
	stale := rename("Satellite")
	refused(stale, 412)
	code(stale.JSON412.Error, "precondition_failed")

	step("store a document at the project")
	stored := must(client.StoreSecretsWithResponse(ctx, organization, nil, strongroom.StoreBody{
		Project: project, Plaintext: new("A=project\nB=project\n"),
	}))
	good(stored.JSON200, stored)

	step("store a document at the environment")
	version := good(store("A=first\n").Data.Version, stored)

	step("read it decrypted")
	expect(content() == "A=first\n")

	step("read it merged")
	merged := read(client, &strongroom.ReadEnvironmentSecretsParams{
		Decrypt: new(true), Merge: new(strongroom.ReadEnvironmentSecretsParamsMergeTrue),
	})
	values := *good(merged.JSON200, merged).Data.Attributes.Merged
	expect(values["A"] == "first" && values["B"] == "project", values)

	step("store another document there")
	store("A=second\n")

	step("list the versions, the newest first")
	versions := listVersions()
	expect(len(versions) == 2 && versions[1].Id == version, versions)

	step("restore the first version")
	restored := must(client.RestoreVersionWithResponse(ctx, organization, version, nil, strongroom.RestoreBody{}))
	expect(good(restored.JSON200, restored).Data.RestoredFrom == version)

	step("read it decrypted: the first document")
	expect(content() == "A=first\n")

	step("rotate the key")
	rotate := func() *strongroom.RotateEncryptionKeyResponse {
		return must(client.RotateEncryptionKeyWithResponse(ctx, organization, project, nil,
			strongroom.RotateBody{HistoryPolicy: new(strongroom.HistoryPolicyKeep)}))
	}
	rotated := rotate()
	expect(good(rotated.JSON200, rotated).Data.Key.Attributes.Version == "2")

	step("rotate it once more: 429")
	limited := rotate()
	refused(limited, 429)
	code(limited.JSONDefault.Error, "rate_limit_exceeded")
	expect(*limited.HeadersDefault.RetryAfter > 0)

	step("list the keys")
	keys := must(client.ListEncryptionKeysWithResponse(ctx, organization, project, nil))
	expect(len(good(keys.JSON200, keys).Data) == 2)

	step("read it decrypted under the new key")
	expect(content() == "A=first\n")

	step("retrieve the document decrypted")
	retrieve := func(action strongroom.RetrieveBodyAction) any {
		answer := must(client.RetrieveSecretsWithResponse(ctx, organization, strongroom.RetrieveBody{
			Project: project, Target: new(target), Environment: new(environment), Action: &action,
		}))
		return must(good(answer.JSON200, answer).Data.ValueByDiscriminator())
	}
	document, ok := retrieve(strongroom.RetrieveBodyActionDecrypt).(strongroom.Secrets)
	expect(ok && document.Attributes.Levels.Environment.Content == "A=first\n", document)

	step("retrieve the key")
	key, ok := retrieve(strongroom.RetrieveBodyActionKeyRetrieve).(strongroom.EncryptionKey)
	expect(ok && key.Attributes.Version == 2)

	step("change two names of the document")
	change := func(body strongroom.ChangeBody) strongroom.ChangedNames {
		answer := must(client.ChangeEnvironmentSecretsWithResponse(
			ctx, organization, project, target, environment, nil, body))
		return good(answer.JSON200, answer).Data
	}
	changed := change(strongroom.ChangeBody{Set: &map[string]any{"A": "third", "C": "new"}})
	expect(slices.Equal(changed.Changed, []string{"A"}) && slices.Equal(changed.Added, []string{"C"}), changed)

	step("remove one of them")
	removed := change(strongroom.ChangeBody{Unset: &[]string{"C"}})
	expect(slices.Equal(removed.Removed, []string{"C"}) && *removed.Version != *changed.Version, removed)

	step("list the names, merged, without values")
	listed := must(client.ReadEnvironmentNamesWithResponse(ctx, organization, project, target, environment,
		&strongroom.ReadEnvironmentNamesParams{Merge: new(true)}))
	names := good(listed.JSON200, listed)
	expect(names.Meta.Total == 2, names)
	overriding, inherited := names.Data[0].Attributes, names.Data[1].Attributes
	expect(overriding.Name == "A" && overriding.Level == strongroom.LevelEnvironment, overriding)
	expect(slices.Equal(overriding.Overrides, []strongroom.Level{strongroom.LevelProject}), overriding)
	expect(inherited.Name == "B" && inherited.Level == strongroom.LevelProject, inherited)

	step("find the levels that have a name")
	searched := must(client.SearchNamesWithResponse(ctx, organization, &strongroom.SearchNamesParams{Search: "a"}))
	matches := good(searched.JSON200, searched)
	expect(len(matches.Data) == 2 && matches.Meta.Next == nil, matches)
	expect(slices.ContainsFunc(matches.Data, func(one strongroom.FoundName) bool {
		return one.Attributes.Target == nil
	}), matches)
	expect(slices.ContainsFunc(matches.Data, func(one strongroom.FoundName) bool {
		return one.Attributes.Environment != nil && *one.Attributes.Environment == environment
	}), matches)

	step("compare the project with the environment")
	compared := must(client.CompareEnvironmentSecretsWithResponse(ctx, organization, project, target, environment,
		&strongroom.CompareEnvironmentSecretsParams{From: "project", To: "environment", Values: new(true)}))
	differences := good(compared.JSON200, compared).Data.Attributes
	expect(slices.Equal(differences.Changed, []string{"A"}) && slices.Equal(differences.Removed, []string{"B"}), differences)
	pairs := *differences.Values
	expect(*pairs[0].From == "project" && *pairs[0].To == "third", differences)
	expect(*pairs[1].From == "project" && pairs[1].To == nil, differences)

	step("read the history of the removed name, the newest version first")
	traced := must(client.ReadEnvironmentNameHistoryWithResponse(ctx, organization, project, target, environment,
		&strongroom.ReadEnvironmentNameHistoryParams{Name: "C", Values: new(true)}))
	changes := good(traced.JSON200, traced)
	expect(len(changes.Data) == 2 && changes.Meta.Next == nil, changes)
	expect(changes.Data[0].Id == *removed.Version && changes.Data[0].Attributes.Value == nil, changes)
	expect(changes.Data[1].Id == *changed.Version && *changes.Data[1].Attributes.Value == "new", changes)

	step("read the values")
	fetched := must(client.ReadEnvironmentValuesWithResponse(ctx, organization, project, target, environment, nil))
	values = good(fetched.JSON200, fetched)
	expect(values["A"] == "third" && values["B"] == "project", values)

	step("list the names of all levels")
	tabled := must(client.ReadProjectMatrixWithResponse(ctx, organization, project, nil))
	matrix := good(tabled.JSON200, tabled)
	expect(len(matrix.Data.Attributes.Levels) == 3 && matrix.Meta.Total == 2 && matrix.Meta.NextLevels == nil, matrix)
	row := (*matrix.Data.Attributes.Names)[0]
	lowest := row.Cells[2]
	expect(row.Name == "A" && lowest.State == strongroom.MatrixCellStateOverrides && *lowest.ValueGroup == 2, row)
	expect(row.Cells[1].State == strongroom.MatrixCellStateInherited && *row.Cells[1].ValueGroup == 1, row)

	step("plan a change without making it")
	dry := must(client.ChangeEnvironmentSecretsWithResponse(ctx, organization, project, target, environment,
		&strongroom.ChangeEnvironmentSecretsParams{DryRun: new(true)},
		strongroom.ChangeBody{Set: &map[string]any{"A": "fourth"}}))
	planned := good(dry.JSON200, dry)
	expect(planned.Data.Version == nil && !planned.Data.Unchanged, planned)
	expect(slices.Equal(planned.DryRun.Levels[0].Names.Changed, []string{"A"}), planned)

	step("list the projects: the last change")
	overview := must(client.ListProjectsWithResponse(ctx, organization, nil))
	last := good(overview.JSON200, overview).Data[0].Attributes.LastChange
	expect(last.Version == *removed.Version && last.CreatedBy != nil, last)

	step("create a token that reads")
	created := must(client.CreateApiTokenWithResponse(ctx, organization, nil, strongroom.CreateTokenBody{
		Name: "Reader", Abilities: []strongroom.Ability{strongroom.AbilitySECRETREAD},
	}))
	token := good(created.JSON201, created)
	reader := clientOf(token.Token)

	step("read with it: the document is encrypted")
	encrypted := read(reader, nil)
	expect(good(encrypted.JSON200, encrypted).Data.Attributes.Levels.Environment.Encrypted)

	step("store with it: 403")
	forbidden := must(reader.StoreSecretsWithResponse(ctx, organization, nil, strongroom.StoreBody{
		Project: project, Plaintext: new("A=third\n"),
	}))
	refused(forbidden, 403)
	code(forbidden.JSONDefault.Error, "insufficient_permissions")

	step("give it another value")
	value := must(client.RotateApiTokenWithResponse(ctx, organization, token.ApiKey.Id, nil, strongroom.RotateTokenBody{}))
	expect(good(value.JSON200, value).Token != token.Token)

	step("read with the value that it had: 401")
	unknown := read(reader, nil)
	refused(unknown, 401)
	code(unknown.JSONDefault.Error, "unauthenticated")

	step("delete the token")
	empty(must(client.DeleteApiTokenWithResponse(ctx, organization, token.ApiKey.Id)))

	step("invite a person")
	invited := must(client.InviteMemberWithResponse(ctx, organization, nil, strongroom.InviteMemberBody{
		Email: "ada@nimbus.example", Role: strongroom.RoleDeveloper,
	}))
	invitation := good(invited.JSON201, invited).Data.Id

	step("list the invitations")
	invitations := must(client.ListInvitationsWithResponse(ctx, organization, nil))
	expect(slices.ContainsFunc(good(invitations.JSON200, invitations).Data, func(one strongroom.Invitation) bool {
		return one.Attributes.Email == "ada@nimbus.example"
	}))

	step("send the invitation again")
	sent := must(client.SendInvitationWithResponse(ctx, organization, invitation, nil, strongroom.SendInvitationBody{}))
	expect(good(sent.JSON200, sent).Data.Id == invitation)

	step("withdraw the invitation")
	empty(must(client.WithdrawInvitationWithResponse(ctx, organization, invitation, nil)))

	step("list the plans: one allows more bytes than 32 bits count")
	plans := must(client.ListPlansWithResponse(ctx))
	expect(slices.ContainsFunc(good(plans.JSON200, plans).Data, func(plan strongroom.CataloguePlan) bool {
		return plan.Attributes.MaxBytes != nil && *plan.Attributes.MaxBytes > int64(1)<<32
	}))

	step("read what is used")
	usage := must(client.GetUsageWithResponse(ctx, organization))
	used := good(usage.JSON200, usage).Data.Attributes
	expect(used.Bytes.Used > int64(0) && len(used.Days) == 31, used)

	step("read what the owner may do")
	members := must(client.ListMembersWithResponse(ctx, organization, nil))
	member := good(members.JSON200, members).Data[0].Id
	allowed := must(client.GetMemberAccessWithResponse(ctx, organization, member, nil))
	access := good(allowed.JSON200, allowed).Data.Attributes
	expect(access.Role == strongroom.RoleOwner && len(access.Projects) == 0, access)
	expect(slices.Contains(access.Scopes, strongroom.AbilitySECRETDECRYPT), access)

	step("read a target that is not there: 404")
	missing := must(client.GetTargetWithResponse(ctx, organization, project, "nowhere", nil))
	refused(missing, 404)
	code(missing.JSONDefault.Error, "not_found")

	step("store a document that does not parse: 422")
	unreadable := must(client.StoreSecretsWithResponse(ctx, organization, nil, strongroom.StoreBody{
		Project: project, Plaintext: new("what"),
	}))
	refused(unreadable, 422)
	code(unreadable.JSON422.Error, "document_unreadable")

	step("delete the document")
	empty(must(client.DeleteSecretsWithResponse(ctx, organization, nil, strongroom.DeleteBody{
		Project: project, Target: new(target), Environment: new(environment),
	})))

	step("purge its history")
	purged := must(client.PurgeVersionsWithResponse(ctx, organization, nil, strongroom.PurgeBody{
		Project: project, Target: new(target), Environment: new(environment),
		Confirmed: true,
	}))
	expect(good(purged.JSON200, purged).Data.PurgedCount > 0)

	step("list the versions: none")
	expect(len(listVersions()) == 0)

	step("list the audit events of what was stored")
	events := must(client.ListAuditEventsWithResponse(ctx, organization,
		&strongroom.ListAuditEventsParams{Action: new(strongroom.EventNameSecretStore)}))
	expect(len(good(events.JSON200, events).Data) == 5)

	step("count the audit events of each day")
	counted := must(client.CountAuditEventsWithResponse(ctx, organization, nil))
	counts := good(counted.JSON200, counted).Data
	expect(len(counts) == 31 && slices.ContainsFunc(counts, func(one strongroom.AuditEventCount) bool {
		return one.Attributes.Count > 5
	}), counts)

	step("export the audit events of what was stored")
	exported := must(client.ExportAuditEventsWithResponse(ctx, organization,
		&strongroom.ExportAuditEventsParams{Action: new(strongroom.EventNameSecretStore)},
		func(_ context.Context, request *http.Request) error {
			// The generated method parses lines of JSON as one JSON text.
			request.Header.Set("Accept", "text/csv")
			return nil
		}))
	expect(exported.StatusCode() == http.StatusOK && bytes.Count(exported.Body, []byte("\n")) == 6, exported.StatusCode())

	step("delete the project")
	empty(must(client.DeleteProjectWithResponse(ctx, organization, project, nil)))

	fmt.Printf("%d steps\n", steps)
}
