//! The scenario of clients/README.md.

use futures_core::Stream;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde_json::Map;
use std::{collections::HashMap, env, error, fmt::Debug, future::poll_fn};
use strongroom::{Client, Error, ResponseValue, types};
use types::{Slug, StoreBodyPlaintext};

const PROJECT: &str = "orbit";
const TARGET: &str = "backend";
const ENVIRONMENT: &str = "live";

type Outcome<T> = Result<T, Box<dyn error::Error>>;
type Answer<T> = Result<ResponseValue<T>, Error<types::Error>>;

struct Scenario {
    client: Client,
    organization: String,
    steps: u32,
}

fn client_of(token: &str) -> Outcome<Client> {
    let headers = HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {token}").parse()?)]);
    let http = reqwest::Client::builder().default_headers(headers).build()?;
    Ok(Client::new_with_client(&env::var("STRONGROOM_URL")?, http))
}

fn slug(text: &str) -> Slug {
    text.parse().expect("a slug")
}

fn plaintext(text: &str) -> StoreBodyPlaintext {
    text.parse().expect("a document")
}

fn document(text: &str) -> types::builder::StoreBody {
    types::StoreBody::builder()
        .project(slug(PROJECT))
        .target(slug(TARGET))
        .environment(slug(ENVIRONMENT))
        .plaintext(plaintext(text))
}

fn environment_of(secrets: &types::Secrets) -> &types::LevelDocument {
    let levels = secrets.attributes.levels.as_ref().expect("levels");
    levels.environment.as_ref().expect("a document")
}

impl Scenario {
    fn step(&mut self, what: &str) {
        self.steps += 1;
        println!("{} {what}", self.steps);
    }

    fn expect(&self, holds: bool, seen: impl Debug) {
        assert!(holds, "step {}: {seen:?}", self.steps);
    }

    /// The answer to a call that has to be refused.
    fn refused<T: Debug>(&self, answer: Answer<T>, status: u16, code: &str) -> HeaderMap {
        match answer {
            Err(Error::ErrorResponse(refusal)) => {
                self.expect(refusal.status() == status && refusal.error == code, &refusal);
                refusal.headers().clone()
            }
            other => panic!("step {}: {other:?}", self.steps),
        }
    }

    async fn store(&self, by: &Client, body: types::builder::StoreBody) -> Answer<types::StoreAnswer> {
        by.store_secrets().organization(self.organization.as_str()).body(body).send().await
    }

    fn reading<'a>(&self, by: &'a Client) -> strongroom::builder::ReadEnvironmentSecrets<'a> {
        by.read_environment_secrets()
            .organization(self.organization.as_str())
            .project(PROJECT)
            .target(TARGET)
            .environment(ENVIRONMENT)
    }

    async fn content(&self) -> Outcome<String> {
        let answer = self.reading(&self.client).decrypt(true).send().await?;
        Ok(environment_of(&answer.data).content.clone())
    }

    async fn retrieve(&self, action: types::RetrieveBodyAction) -> Outcome<types::Retrieved> {
        let body = types::RetrieveBody::builder()
            .project(slug(PROJECT))
            .target(slug(TARGET))
            .environment(slug(ENVIRONMENT))
            .action(action);
        let call = self.client.retrieve_secrets().organization(self.organization.as_str());
        Ok(call.body(body).send().await?.into_inner().data)
    }

    async fn list_versions(&self) -> Outcome<Vec<types::Version>> {
        let body = types::ListVersionsBody::builder()
            .project(slug(PROJECT))
            .target(slug(TARGET))
            .environment(slug(ENVIRONMENT));
        Ok(self
            .client
            .list_versions()
            .organization(self.organization.as_str())
            .body(body)
            .send()
            .await?
            .into_inner()
            .data)
    }

    async fn change(&self, body: types::builder::ChangeBody) -> Outcome<types::ChangedNames> {
        let call = self.client.change_environment_secrets().organization(self.organization.as_str());
        let call = call.project(PROJECT).target(TARGET).environment(ENVIRONMENT);
        Ok(call.body(body).send().await?.into_inner().data)
    }

    async fn create_project(&self) -> Outcome<types::ProjectAnswer> {
        let body = types::CreateProjectBody::builder().name("Orbit").slug(slug(PROJECT));
        let call = self.client.create_project().organization(self.organization.as_str());
        Ok(call.idempotency_key("scenario").body(body).send().await?.into_inner())
    }

    async fn rename(&self, name: &str, tag: &str) -> Answer<types::ProjectAnswer> {
        let name: types::UpdateProjectBodyName = name.parse().expect("a name");
        let call = self.client.update_project().organization(self.organization.as_str()).project(PROJECT);
        call.if_match(tag).body(types::UpdateProjectBody::builder().name(name)).send().await
    }

    async fn rotate(&self) -> Answer<types::RotateAnswer> {
        let body = types::RotateBody::builder().history_policy(types::HistoryPolicy::Keep);
        let call = self.client.rotate_encryption_key().organization(self.organization.as_str()).project(PROJECT);
        call.body(body).send().await
    }

    async fn run(&mut self) -> Outcome<()> {
        let organization = &*self.organization.clone();
        let client = self.client.clone();

        self.step("read who the token is");
        let principal = client.get_user().send().await?;
        self.expect(matches!(principal.data, types::Principal::TokenPrincipal(_)), &principal);

        self.step("read the organization");
        let own = client.get_organization().organization(organization).send().await?;
        self.expect(own.data.attributes.name == "Nimbus", &own);

        self.step("create a project");
        let project = self.create_project().await?;

        self.step("create it again with the same Idempotency-Key: the same project");
        let again = self.create_project().await?;
        self.expect(again.data.id == project.data.id, &again);

        self.step("create a target");
        let backend = types::CreateTargetBody::builder().name("Backend");
        client.create_target().organization(organization).project(PROJECT).body(backend).send().await?;

        self.step("create an environment");
        let production: types::CreateEnvironmentBodyStatus = "production".parse()?;
        let live = types::CreateEnvironmentBody::builder().name("Live").status(production);
        let call = client.create_environment().organization(organization).project(PROJECT).target(TARGET);
        let environment = call.body(live).send().await?;
        self.expect(*environment.data.attributes.slug == ENVIRONMENT, &environment);

        self.step("list the environments of the target");
        let call = client.list_environments().organization(organization).project(PROJECT).target(TARGET);
        let environments = call.send().await?;
        self.expect(environments.data.len() == 1 && environments.meta.total == 1, &environments);

        self.step("read the ETag of the project");
        let found = client.get_project().organization(organization).project(PROJECT).send().await?;
        let tag = found.headers()["etag"].to_str()?;

        self.step("rename the project that it is of");
        let renamed = self.rename("Orbiter", tag).await?;
        self.expect(renamed.data.attributes.name == "Orbiter", &renamed);

        self.step("rename it by the ETag that it had: 412");
        self.refused(self.rename("Satellite", tag).await, 412, "precondition_failed");

        self.step("store a document at the project");
        let values = types::StoreBody::builder().project(slug(PROJECT)).plaintext(plaintext("A=project\nB=project\n"));
        self.store(&client, values).await?;

        self.step("store a document at the environment");
        let first = self.store(&client, document("A=first\n")).await?.into_inner().data.version.expect("a version");

        self.step("read it decrypted");
        self.expect(self.content().await? == "A=first\n", ());

        self.step("read it merged");
        let call = self.reading(&client).decrypt(true).merge(types::ReadEnvironmentSecretsMerge::True);
        let merged = call.send().await?.into_inner().data.attributes.merged;
        let wanted = [("A", "first"), ("B", "project")].map(|(name, value)| (name.into(), value.into()));
        self.expect(merged == HashMap::from(wanted), &merged);

        self.step("store another document there");
        self.store(&client, document("A=second\n")).await?;

        self.step("list the versions, the newest first");
        let versions = self.list_versions().await?;
        self.expect(versions.len() == 2 && versions[1].id == first, &versions);

        self.step("restore the first version");
        let call = client.restore_version().organization(organization).version(&*first);
        let restored = call.body(types::RestoreBody::builder()).send().await?;
        self.expect(restored.data.restored_from == first, &restored);

        self.step("read it decrypted: the first document");
        self.expect(self.content().await? == "A=first\n", ());

        self.step("rotate the key");
        let rotated = self.rotate().await?;
        self.expect(rotated.data.key.attributes.version == "2", &rotated.message);

        self.step("rotate it once more: 429");
        let headers = self.refused(self.rotate().await, 429, "rate_limit_exceeded");
        self.expect(headers["retry-after"].to_str()?.parse::<u32>()? > 0, &headers);

        self.step("list the keys");
        let keys = client.list_encryption_keys().organization(organization).project(PROJECT).send().await?;
        self.expect(keys.data.len() == 2, &keys);

        self.step("read it decrypted under the new key");
        self.expect(self.content().await? == "A=first\n", ());

        self.step("retrieve the document decrypted");
        match self.retrieve(types::RetrieveBodyAction::Decrypt).await? {
            types::Retrieved::Secrets(secrets) => {
                self.expect(environment_of(&secrets).content == "A=first\n", &secrets);
            }
            other => self.expect(false, other),
        }

        self.step("retrieve the key");
        match self.retrieve(types::RetrieveBodyAction::KeyRetrieve).await? {
            types::Retrieved::EncryptionKey(key) => self.expect(key.attributes.version == 2, ()),
            other => self.expect(false, other),
        }

        self.step("change two names of the document");
        let two = Map::from_iter([("A", "third"), ("C", "new")].map(|(name, value)| (name.into(), value.into())));
        let changed = self.change(types::ChangeBody::builder().set(two)).await?;
        self.expect(changed.changed == ["A"] && changed.added == ["C"], &changed);

        self.step("remove one of them");
        let removed = self.change(types::ChangeBody::builder().unset(vec!["C".parse()?])).await?;
        self.expect(removed.removed == ["C"] && removed.version != changed.version, &removed);

        self.step("list the names, merged, without values");
        let call = client.read_environment_names().organization(organization).project(PROJECT).target(TARGET);
        let names = call.environment(ENVIRONMENT).merge(true).send().await?;
        self.expect(names.meta.total == 2, &names);
        let [overriding, inherited] = [0, 1].map(|index: usize| &names.data[index].attributes);
        self.expect(overriding.name == "A" && overriding.level == types::Level::Environment, overriding);
        self.expect(overriding.overrides == [types::Level::Project], overriding);
        self.expect(inherited.name == "B" && inherited.level == types::Level::Project, inherited);

        self.step("find the levels that have a name");
        let found = client.search_names().organization(organization).search("a").send().await?;
        self.expect(found.data.len() == 2 && found.meta.next.is_none(), &found);
        self.expect(found.data.iter().any(|one| one.attributes.target.is_none()), &found);
        let live = Some(slug(ENVIRONMENT));
        self.expect(found.data.iter().any(|one| one.attributes.environment == live), &found);

        self.step("compare the project with the environment");
        let call = client.compare_environment_secrets().organization(organization).project(PROJECT).target(TARGET);
        let call = call.environment(ENVIRONMENT).from("project").to("environment").values(true);
        let differences = call.send().await?.into_inner().data.attributes;
        self.expect(differences.changed == ["A"] && differences.removed == ["B"], &differences);
        let pairs: Vec<_> =
            differences.values.iter().map(|one| (&*one.name, one.from.as_deref(), one.to.as_deref())).collect();
        let wanted = [("A", Some("project"), Some("third")), ("B", Some("project"), None)];
        self.expect(pairs == wanted, &differences);

        self.step("read the history of the removed name, the newest version first");
        let call = client.read_environment_name_history().organization(organization).project(PROJECT).target(TARGET);
        let changes = call.environment(ENVIRONMENT).name("C").values(true).send().await?;
        self.expect(changes.data.len() == 2 && changes.meta.next.is_none(), &changes);
        let [removal, addition] = [0, 1].map(|index: usize| &changes.data[index]);
        self.expect(Some(&removal.id) == removed.version.as_ref() && removal.attributes.value.is_none(), removal);
        self.expect(Some(&addition.id) == changed.version.as_ref(), addition);
        self.expect(addition.attributes.value.as_deref() == Some("new"), addition);

        self.step("read the values");
        let call = client.read_environment_values().organization(organization).project(PROJECT).target(TARGET);
        let values = call.environment(ENVIRONMENT).send().await?.into_inner();
        let wanted = [("A", "third"), ("B", "project")].map(|(name, value)| (name.into(), value.into()));
        self.expect(*values == HashMap::from(wanted), &values);

        self.step("list the names of all levels");
        let matrix = client.read_project_matrix().organization(organization).project(PROJECT).send().await?;
        let (levels, rows) = (&matrix.data.attributes.levels, &matrix.data.attributes.names);
        self.expect(levels.len() == 3 && matrix.meta.total == 2 && matrix.meta.next_levels.is_none(), &matrix);
        let row = &rows.as_ref().expect("names")[0];
        let own = &row.cells[2];
        self.expect(own.state == types::MatrixCellState::Overrides && own.value_group == Some(2), row);
        self.expect(row.cells[1].state == types::MatrixCellState::Inherited, row);

        self.step("plan a change without making it");
        let fourth = Map::from_iter([("A".into(), "fourth".into())]);
        let call = client.change_environment_secrets().organization(organization).project(PROJECT).target(TARGET);
        let call = call.environment(ENVIRONMENT).dry_run(true).body(types::ChangeBody::builder().set(fourth));
        let planned = call.send().await?.into_inner();
        self.expect(planned.data.version.is_none() && !planned.data.unchanged, &planned);
        let dry_run = planned.dry_run.as_ref().expect("a dry run");
        self.expect(dry_run.levels[0].names.as_ref().expect("names").changed == ["A"], &planned);

        self.step("list the projects: the last change");
        let listed = client.list_projects().organization(organization).send().await?;
        let last = listed.data[0].attributes.last_change.as_ref();
        self.expect(last.is_some_and(|one| Some(&one.version) == removed.version.as_ref()), &listed);

        self.step("create a token that reads");
        let reads = types::CreateTokenBody::builder().name("Reader").abilities(vec![types::Ability::SecretRead]);
        let created = client.create_api_token().organization(organization).body(reads).send().await?.into_inner();
        let reader = client_of(&created.token)?;

        self.step("read with it: the document is encrypted");
        let encrypted = self.reading(&reader).send().await?;
        self.expect(environment_of(&encrypted.data).encrypted, &encrypted);

        self.step("store with it: 403");
        self.refused(self.store(&reader, document("A=third\n")).await, 403, "insufficient_permissions");

        self.step("give it another value");
        let call = client.rotate_api_token().organization(organization).id(&*created.api_key.id);
        let value = call.body(types::RotateTokenBody::builder()).send().await?;
        self.expect(value.token != created.token, &value.api_key);

        self.step("read with the value that it had: 401");
        self.refused(self.reading(&reader).send().await, 401, "unauthenticated");

        self.step("delete the token");
        client.delete_api_token().organization(organization).id(&*created.api_key.id).send().await?;

        self.step("invite a person");
        let person = types::InviteMemberBody::builder().email("ada@nimbus.example").role(types::Role::Developer);
        let invited = client.invite_member().organization(organization).body(person).send().await?;
        let invitation = invited.into_inner().data.id;

        self.step("list the invitations");
        let invitations = client.list_invitations().organization(organization).send().await?;
        self.expect(invitations.data.iter().any(|one| one.id == invitation), &invitations);

        self.step("send the invitation again");
        let call = client.send_invitation().organization(organization).invitation(&*invitation);
        call.body(types::SendInvitationBody::builder()).send().await?;

        self.step("withdraw the invitation");
        client.withdraw_invitation().organization(organization).invitation(&*invitation).send().await?;

        self.step("list the plans: one allows more bytes than 32 bits count");
        let plans = client.list_plans().send().await?;
        self.expect(plans.data.iter().any(|plan| plan.attributes.max_bytes > Some(1 << 32)), &plans);

        self.step("read what is used");
        let usage = client.get_usage().organization(organization).send().await?;
        self.expect(usage.data.attributes.bytes.used > 0, &usage);
        self.expect(usage.data.attributes.days.len() == 31, &usage);

        self.step("read what the owner may do");
        let members = client.list_members().organization(organization).send().await?;
        let call = client.get_member_access().organization(organization).member(&*members.data[0].id);
        let access = call.send().await?.into_inner().data.attributes;
        self.expect(access.role == types::Role::Owner && access.projects.is_empty(), &access);
        self.expect(access.scopes.contains(&types::Ability::SecretDecrypt), &access);

        self.step("read a target that is not there: 404");
        let call = client.get_target().organization(organization).project(PROJECT).target("nowhere");
        self.refused(call.send().await, 404, "not_found");

        self.step("store a document that does not parse: 422");
        let unreadable = types::StoreBody::builder().project(slug(PROJECT)).plaintext(plaintext("what"));
        self.refused(self.store(&client, unreadable).await, 422, "document_unreadable");

        self.step("delete the document");
        let gone =
            types::DeleteBody::builder().project(slug(PROJECT)).target(slug(TARGET)).environment(slug(ENVIRONMENT));
        client.delete_secrets().organization(organization).body(gone).send().await?;

        self.step("purge its history");
        let all = types::PurgeBody::builder()
            .project(slug(PROJECT))
            .target(slug(TARGET))
            .environment(slug(ENVIRONMENT))
            .confirmed(true);
        let purged = client.purge_versions().organization(organization).body(all).send().await?;
        self.expect(purged.data.purged_count > 0, &purged);

        self.step("list the versions: none");
        self.expect(self.list_versions().await?.is_empty(), ());

        self.step("list the audit events of what was stored");
        let call = client.list_audit_events().organization(organization).action(types::EventName::SecretStore);
        let events = call.send().await?;
        self.expect(events.data.len() == 5, &events);

        self.step("count the audit events of each day");
        let counts = client.count_audit_events().organization(organization).send().await?;
        self.expect(counts.data.len() == 31 && counts.data.iter().any(|one| one.attributes.count > 5), &counts);

        self.step("export the audit events of what was stored");
        let call = client.export_audit_events().organization(organization).action(types::EventName::SecretStore);
        let mut stream = call.send().await?.into_inner().into_inner();
        let mut lines = Vec::new();
        while let Some(part) = poll_fn(|context| stream.as_mut().poll_next(context)).await {
            lines.extend_from_slice(&part?);
        }
        self.expect(lines.iter().filter(|byte| **byte == b'\n').count() == 5, &lines);

        self.step("delete the project");
        client.delete_project().organization(organization).project(PROJECT).send().await?;

        println!("{} steps", self.steps);
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let client = client_of(&env::var("STRONGROOM_TOKEN")?)?;
    Scenario { client, organization: env::var("STRONGROOM_ORGANIZATION")?, steps: 0 }.run().await
}
