-- The whole schema. src/db/tables.ts says what each table and column is for. Until 0.1.0 is released, a change of the
-- schema changes this file (docs/decisions/0061-one-baseline-migration.md).

-- The service itself

CREATE TABLE plans (
  name varchar(64) PRIMARY KEY,
  retention_days integer,
  api_per_minute integer NOT NULL,
  max_projects integer,
  max_members integer,
  max_bytes bigint
);

CREATE TABLE plan_prices (
  plan varchar(64) NOT NULL,
  interval varchar(8) NOT NULL,
  currency char(3) NOT NULL,
  amount bigint NOT NULL,
  CONSTRAINT plan_prices_plan_interval_currency_pk PRIMARY KEY (plan, interval, currency),
  CONSTRAINT plan_prices_amount CHECK (amount > 0),
  CONSTRAINT plan_prices_plan_plans_name_fk FOREIGN KEY (plan) REFERENCES plans (name) ON DELETE CASCADE
);

-- The operator may change these rows. Null is no limit; a plan without a price is free.
INSERT INTO plans (name, retention_days, api_per_minute, max_projects, max_members, max_bytes) VALUES
  ('free', 7, 100, 5, 5, 10485760),
  ('pro', 30, 100, 50, 25, 1073741824),
  ('team', 90, 100, NULL, 100, 10737418240),
  ('enterprise', 365, 100, NULL, NULL, NULL),
  ('self-hosted', NULL, 100, NULL, NULL, NULL);
INSERT INTO plan_prices (plan, interval, currency, amount) VALUES
  ('pro', 'month', 'EUR', 2900), ('pro', 'year', 'EUR', 29000),
  ('pro', 'month', 'USD', 2900), ('pro', 'year', 'USD', 29000),
  ('team', 'month', 'EUR', 9900), ('team', 'year', 'EUR', 99000),
  ('team', 'month', 'USD', 9900), ('team', 'year', 'USD', 99000),
  ('enterprise', 'month', 'EUR', 49900), ('enterprise', 'year', 'EUR', 499000),
  ('enterprise', 'month', 'USD', 49900), ('enterprise', 'year', 'USD', 499000);

CREATE TABLE master_key_canaries (
  key_id varchar(32) PRIMARY KEY,
  canary bytea NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now()
);

CREATE TABLE service_keys (
  name varchar(32) PRIMARY KEY,
  wrapped bytea NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now()
);

CREATE TABLE last_backup (
  id integer PRIMARY KEY DEFAULT 1,
  made_at timestamptz(3) NOT NULL,
  bytes bigint NOT NULL,
  CONSTRAINT last_backup_one CHECK (id = 1)
);
--> statement-breakpoint

-- Organizations

CREATE TABLE organizations (
  id char(26) PRIMARY KEY,
  slug varchar(64) NOT NULL,
  storage_key bytea NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT organizations_slug_unique UNIQUE (slug)
);

CREATE TABLE organization_counters (
  organization_id char(26) PRIMARY KEY,
  name varchar(255) NOT NULL,
  status varchar(16) NOT NULL DEFAULT 'active',
  plan varchar(64) NOT NULL,
  next_version bigint NOT NULL DEFAULT 1,
  next_event bigint NOT NULL DEFAULT 1,
  last_at timestamptz(3) NOT NULL DEFAULT now(),
  event_head bytea,
  chain_kid char(26),
  stored_bytes bigint NOT NULL DEFAULT 0,
  is_closed boolean NOT NULL DEFAULT false,
  require_second_factor boolean NOT NULL DEFAULT false,
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT organization_counters_plan_plans_name_fk FOREIGN KEY (plan) REFERENCES plans (name)
);

CREATE TABLE long_operations (
  organization_id char(26) PRIMARY KEY,
  began_at timestamptz(3) NOT NULL DEFAULT now()
);

CREATE TABLE organization_removals (
  organization_id char(26) PRIMARY KEY,
  removed_at timestamptz(3) NOT NULL DEFAULT now()
);

CREATE TABLE former_slugs (
  organization_id char(26) NOT NULL,
  slug varchar(64) NOT NULL,
  reserved_until timestamptz(3) NOT NULL,
  owner_id bigint,
  CONSTRAINT former_slugs_organization_id_slug_pk PRIMARY KEY (organization_id, slug),
  CONSTRAINT former_slugs_slug_unique UNIQUE (slug)
);
CREATE INDEX former_slugs_by_end ON former_slugs (reserved_until);
CREATE INDEX former_slugs_by_owner ON former_slugs (owner_id) WHERE owner_id IS NOT NULL;
--> statement-breakpoint

-- People and how they sign in

CREATE TABLE users (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  email varchar(320) NOT NULL,
  email_normalized varchar(320) NOT NULL,
  name varchar(255) NOT NULL,
  password_hash text,
  is_verified boolean NOT NULL DEFAULT false,
  disabled_at timestamptz(3),
  second_factor_id bigint,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT users_email_normalized_unique UNIQUE (email_normalized)
);

CREATE TABLE sign_in_failures (
  key bytea PRIMARY KEY,
  failures integer NOT NULL,
  locked_until timestamptz(3),
  last_at timestamptz(3) NOT NULL DEFAULT now()
);
CREATE INDEX sign_in_failures_last_at_index ON sign_in_failures (last_at);

CREATE TABLE sign_in_devices (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  token_hash bytea NOT NULL,
  user_id bigint NOT NULL,
  expires_at timestamptz(3) NOT NULL,
  CONSTRAINT sign_in_devices_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX sign_in_devices_user_id_token_hash_index ON sign_in_devices (user_id, token_hash);
CREATE INDEX sign_in_devices_token_hash_index ON sign_in_devices (token_hash);
CREATE INDEX sign_in_devices_expires_at_index ON sign_in_devices (expires_at);

CREATE TABLE password_links (
  token_hash bytea PRIMARY KEY,
  user_id bigint NOT NULL,
  expires_at timestamptz(3) NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT password_links_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX password_links_user_id_index ON password_links (user_id);
CREATE INDEX password_links_expires_at_index ON password_links (expires_at);

CREATE TABLE password_resets (
  address_hash bytea PRIMARY KEY,
  token_hash bytea NOT NULL,
  user_id bigint NOT NULL,
  expires_at timestamptz(3) NOT NULL,
  mac bytea,
  CONSTRAINT password_resets_token_hash_unique UNIQUE (token_hash)
);
CREATE INDEX password_resets_user_id_index ON password_resets (user_id);
CREATE INDEX password_resets_expires_at_index ON password_resets (expires_at);

CREATE TABLE sessions (
  token_hash bytea PRIMARY KEY,
  user_id bigint NOT NULL,
  browser varchar(32),
  system varchar(32),
  network varchar(64),
  seen_at timestamptz(3) NOT NULL DEFAULT now(),
  expires_at timestamptz(3) NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT sessions_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX sessions_user_id_index ON sessions (user_id);
CREATE INDEX sessions_seen_at_index ON sessions (seen_at);
CREATE INDEX sessions_expires_at_index ON sessions (expires_at);

CREATE TABLE second_factors (
  user_id bigint PRIMARY KEY,
  id bigint NOT NULL,
  secret bytea NOT NULL,
  last_step bigint,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT second_factors_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);

CREATE TABLE recovery_codes (
  user_id bigint NOT NULL,
  code_hash bytea NOT NULL,
  factor_id bigint NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT recovery_codes_user_id_code_hash_pk PRIMARY KEY (user_id, code_hash),
  CONSTRAINT recovery_codes_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);

CREATE TABLE sign_in_steps (
  token_hash bytea PRIMARY KEY,
  user_id bigint NOT NULL,
  wrong_codes integer NOT NULL DEFAULT 0,
  expires_at timestamptz(3) NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT sign_in_steps_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX sign_in_steps_user_id_index ON sign_in_steps (user_id);
CREATE INDEX sign_in_steps_expires_at_index ON sign_in_steps (expires_at);

CREATE TABLE personal_events (
  id bigint PRIMARY KEY,
  user_id bigint NOT NULL,
  occurred_at timestamptz(3) NOT NULL,
  action varchar(64) NOT NULL,
  actor_type varchar(16) NOT NULL,
  ip varchar(64),
  user_agent varchar(256),
  details jsonb,
  mac bytea,
  CONSTRAINT personal_events_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX personal_events_user_id_occurred_at_id_index ON personal_events (user_id, occurred_at, id);
CREATE INDEX personal_events_occurred_at_index ON personal_events (occurred_at);
--> statement-breakpoint

-- Applications that act for people

CREATE TABLE oauth_clients (
  id varchar(64) PRIMARY KEY,
  name varchar(255) NOT NULL,
  redirect_uris text[] NOT NULL,
  is_first_party boolean NOT NULL DEFAULT false,
  disabled_at timestamptz(3),
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea
);

-- The first start gives these rows their MACs, if they are exactly these (`src/repositories/keys/authenticated-rows.ts`).
INSERT INTO oauth_clients (id, name, redirect_uris, is_first_party) VALUES
  ('dotenv-cli', 'Command line', ARRAY['http://localhost/callback', 'http://127.0.0.1/callback'], true),
  ('swagger-ui', 'API documentation', ARRAY['/docs/static/oauth2-redirect.html'], true),
  ('strongroom-console', 'Console', ARRAY['/console/'], true);

CREATE TABLE oauth_requests (
  id_hash bytea PRIMARY KEY,
  session_hash bytea NOT NULL,
  client_id varchar(64) NOT NULL,
  redirect_uri text NOT NULL,
  state text,
  code_challenge varchar(43) NOT NULL,
  scopes text[] NOT NULL,
  expires_at timestamptz(3) NOT NULL,
  mac bytea,
  CONSTRAINT oauth_requests_session_hash_sessions_token_hash_fk FOREIGN KEY (session_hash)
    REFERENCES sessions (token_hash) ON DELETE CASCADE,
  CONSTRAINT oauth_requests_client_id_oauth_clients_id_fk FOREIGN KEY (client_id)
    REFERENCES oauth_clients (id) ON DELETE CASCADE
);
CREATE INDEX oauth_requests_session_hash_index ON oauth_requests (session_hash);
CREATE INDEX oauth_requests_client_id_index ON oauth_requests (client_id);
CREATE INDEX oauth_requests_expires_at_index ON oauth_requests (expires_at);

CREATE TABLE oauth_grants (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  user_id bigint NOT NULL,
  client_id varchar(64) NOT NULL,
  scopes text[] NOT NULL,
  expires_at timestamptz(3) NOT NULL,
  revoked_at timestamptz(3),
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT oauth_grants_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
  CONSTRAINT oauth_grants_client_id_oauth_clients_id_fk FOREIGN KEY (client_id)
    REFERENCES oauth_clients (id) ON DELETE CASCADE
);
CREATE INDEX oauth_grants_user_id_index ON oauth_grants (user_id);
CREATE INDEX oauth_grants_client_id_index ON oauth_grants (client_id);
CREATE INDEX oauth_grants_expires_at_index ON oauth_grants (expires_at);
CREATE INDEX oauth_grants_revoked_at_index ON oauth_grants (revoked_at);

CREATE TABLE oauth_codes (
  code_hash bytea PRIMARY KEY,
  grant_id bigint NOT NULL,
  redirect_uri text NOT NULL,
  code_challenge varchar(43),
  scopes text[],
  wrong_verifiers integer NOT NULL DEFAULT 0,
  used_at timestamptz(3),
  expires_at timestamptz(3) NOT NULL,
  mac bytea,
  CONSTRAINT oauth_codes_grant_id_oauth_grants_id_fk FOREIGN KEY (grant_id)
    REFERENCES oauth_grants (id) ON DELETE CASCADE
);
CREATE INDEX oauth_codes_grant_id_index ON oauth_codes (grant_id);
CREATE INDEX oauth_codes_expires_at_index ON oauth_codes (expires_at);

CREATE TABLE oauth_tokens (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  grant_id bigint NOT NULL,
  access_hash bytea NOT NULL,
  refresh_hash bytea NOT NULL,
  scopes text[] NOT NULL,
  access_expires_at timestamptz(3) NOT NULL,
  refresh_expires_at timestamptz(3) NOT NULL,
  used_at timestamptz(3),
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT oauth_tokens_access_hash_unique UNIQUE (access_hash),
  CONSTRAINT oauth_tokens_refresh_hash_unique UNIQUE (refresh_hash),
  CONSTRAINT oauth_tokens_grant_id_oauth_grants_id_fk FOREIGN KEY (grant_id)
    REFERENCES oauth_grants (id) ON DELETE CASCADE
);
CREATE INDEX oauth_tokens_grant_id_index ON oauth_tokens (grant_id);
--> statement-breakpoint

-- Members, invitations and API tokens

CREATE TABLE members (
  organization_id char(26) NOT NULL,
  user_id bigint NOT NULL,
  role varchar(32) NOT NULL,
  status varchar(16) NOT NULL DEFAULT 'active',
  joined_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT members_organization_id_user_id_pk PRIMARY KEY (organization_id, user_id),
  CONSTRAINT members_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE,
  CONSTRAINT members_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX members_user_id_index ON members (user_id);

CREATE TABLE invitations (
  organization_id char(26) NOT NULL,
  id char(26) NOT NULL,
  email varchar(320) NOT NULL,
  email_normalized varchar(320) NOT NULL,
  role varchar(32) NOT NULL,
  invited_by_type varchar(16),
  invited_by_id bigint,
  invited_by_name varchar(255),
  token_hash bytea,
  expires_at timestamptz(3) NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT invitations_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT invitations_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX invitations_one_of_address ON invitations (organization_id, email_normalized);
CREATE UNIQUE INDEX invitations_by_token ON invitations (organization_id, token_hash);
CREATE INDEX invitations_email_normalized_index ON invitations (email_normalized);
CREATE INDEX invitations_expires_at_index ON invitations (expires_at);

CREATE TABLE invitation_mails (
  organization_id char(26) NOT NULL,
  email_normalized varchar(320) NOT NULL,
  sent_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT invitation_mails_organization_id_email_normalized_pk PRIMARY KEY (organization_id, email_normalized),
  CONSTRAINT invitation_mails_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE
);
CREATE INDEX invitation_mails_sent_at_index ON invitation_mails (sent_at);

CREATE TABLE api_tokens (
  id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  organization_id char(26) NOT NULL,
  name varchar(255) NOT NULL,
  token_hash bytea NOT NULL,
  token_prefix varchar(12) NOT NULL,
  token_suffix varchar(4) NOT NULL,
  abilities text[] NOT NULL,
  slices jsonb,
  expires_at timestamptz(3),
  last_used_at timestamptz(3),
  created_by_type varchar(16),
  created_by_id bigint,
  created_by_name varchar(255),
  user_id bigint,
  grant_id bigint,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT api_tokens_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT api_tokens_organization_id_token_hash_unique UNIQUE (organization_id, token_hash),
  CONSTRAINT api_tokens_user_id_users_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
  CONSTRAINT api_tokens_grant_id_oauth_grants_id_fk FOREIGN KEY (grant_id)
    REFERENCES oauth_grants (id) ON DELETE CASCADE
);
CREATE INDEX api_tokens_by_id ON api_tokens (id);
CREATE INDEX api_tokens_user_id_index ON api_tokens (user_id);
CREATE INDEX api_tokens_grant_id_index ON api_tokens (grant_id);
CREATE INDEX api_tokens_by_expiry ON api_tokens (expires_at);

CREATE TABLE former_token_hashes (
  organization_id char(26) NOT NULL,
  token_id bigint NOT NULL,
  token_hash bytea NOT NULL,
  expires_at timestamptz(3) NOT NULL,
  mac bytea,
  CONSTRAINT former_token_hashes_organization_id_token_id_pk PRIMARY KEY (organization_id, token_id),
  CONSTRAINT former_token_hashes_organization_id_token_hash_unique UNIQUE (organization_id, token_hash),
  CONSTRAINT former_token_hashes_of_token FOREIGN KEY (organization_id, token_id)
    REFERENCES api_tokens (organization_id, id) ON DELETE CASCADE
);

CREATE TABLE token_removals (
  organization_id char(26) NOT NULL,
  ended varchar(16) NOT NULL,
  ended_id bigint NOT NULL,
  CONSTRAINT token_removals_organization_id_ended_ended_id_pk PRIMARY KEY (organization_id, ended, ended_id)
);
--> statement-breakpoint

-- Projects, teams and keys

CREATE TABLE projects (
  id char(26) NOT NULL,
  organization_id char(26) NOT NULL,
  name varchar(255) NOT NULL,
  slug varchar(64) NOT NULL,
  description text,
  secret_format varchar(8) NOT NULL,
  encryption_type varchar(8) NOT NULL,
  history_policy varchar(16) NOT NULL,
  key_version integer NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT projects_organization_id_id_pk PRIMARY KEY (organization_id, id)
);
CREATE UNIQUE INDEX projects_slug_taken ON projects (organization_id, slug);

CREATE TABLE project_counts (
  organization_id char(26) NOT NULL,
  project_id char(26) NOT NULL,
  target_count integer NOT NULL DEFAULT 0,
  environment_count integer NOT NULL DEFAULT 0,
  secret_count integer NOT NULL DEFAULT 0,
  last_version bigint,
  CONSTRAINT project_counts_organization_id_project_id_pk PRIMARY KEY (organization_id, project_id),
  CONSTRAINT project_counts_in_project FOREIGN KEY (organization_id, project_id)
    REFERENCES projects (organization_id, id) ON DELETE CASCADE
);

CREATE TABLE teams (
  id char(26) NOT NULL,
  organization_id char(26) NOT NULL,
  name varchar(255) NOT NULL,
  slug varchar(64) NOT NULL,
  description text,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT teams_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT teams_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX teams_slug_taken ON teams (organization_id, slug);

CREATE TABLE team_members (
  organization_id char(26) NOT NULL,
  team_id char(26) NOT NULL,
  user_id bigint NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT team_members_organization_id_team_id_user_id_pk PRIMARY KEY (organization_id, team_id, user_id),
  CONSTRAINT team_members_in_team FOREIGN KEY (organization_id, team_id)
    REFERENCES teams (organization_id, id) ON DELETE CASCADE,
  CONSTRAINT team_members_are_members FOREIGN KEY (organization_id, user_id)
    REFERENCES members (organization_id, user_id) ON DELETE CASCADE
);
CREATE INDEX team_members_organization_id_user_id_index ON team_members (organization_id, user_id);

CREATE TABLE team_projects (
  organization_id char(26) NOT NULL,
  team_id char(26) NOT NULL,
  project_id char(26) NOT NULL,
  role varchar(32) NOT NULL,
  slices jsonb,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT team_projects_organization_id_team_id_project_id_pk PRIMARY KEY (organization_id, team_id, project_id),
  CONSTRAINT team_projects_in_team FOREIGN KEY (organization_id, team_id)
    REFERENCES teams (organization_id, id) ON DELETE CASCADE,
  CONSTRAINT team_projects_in_project FOREIGN KEY (organization_id, project_id)
    REFERENCES projects (organization_id, id) ON DELETE CASCADE
);
CREATE INDEX team_projects_organization_id_project_id_index ON team_projects (organization_id, project_id);
CREATE INDEX team_projects_organization_id_team_id_role_index ON team_projects (organization_id, team_id, role);

CREATE TABLE encryption_keys (
  id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  organization_id char(26) NOT NULL,
  project_id char(26) NOT NULL,
  version integer NOT NULL,
  managed varchar(8) NOT NULL,
  key_string bytea,
  data_key bytea,
  key_check bytea,
  key_check_hash bytea,
  salt bytea NOT NULL,
  iterations integer NOT NULL,
  hint varchar(255),
  is_active boolean NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  rotated_at timestamptz(3),
  CONSTRAINT encryption_keys_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT encryption_keys_check_hash CHECK ((key_check_hash IS NULL) = (key_check IS NULL)),
  CONSTRAINT encryption_keys_custody CHECK (CASE WHEN managed = 'client'
    THEN key_string IS NULL AND data_key IS NULL AND key_check IS NOT NULL
    ELSE key_check IS NULL AND (key_string IS NULL) = (data_key IS NULL) AND (key_string IS NOT NULL OR NOT is_active)
  END),
  CONSTRAINT encryption_keys_in_project FOREIGN KEY (organization_id, project_id)
    REFERENCES projects (organization_id, id) ON DELETE CASCADE
);
CREATE INDEX encryption_keys_by_id ON encryption_keys (id);
CREATE UNIQUE INDEX encryption_keys_organization_id_project_id_version_index ON encryption_keys
  (organization_id, project_id, version);
CREATE UNIQUE INDEX encryption_keys_one_active ON encryption_keys (organization_id, project_id) WHERE is_active;
CREATE UNIQUE INDEX encryption_keys_by_check ON encryption_keys
  (organization_id, project_id, key_check_hash) WHERE key_check IS NOT NULL;
CREATE INDEX encryption_keys_of_clients ON encryption_keys
  (organization_id, project_id, version) WHERE managed = 'client';

-- A rotated key is frozen, so that nobody who may write rows replaces the proof or the material of a former key. Two
-- changes are left: the key material is forgotten, and a re-wrap stores the same bytes under a newer master key.
CREATE FUNCTION keep_rotated_key() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  rewrap boolean := coalesce(current_setting('strongroom.rewrap', true), '') = 'on';
BEGIN
  IF (NEW.id, NEW.organization_id, NEW.project_id, NEW.version, NEW.managed, NEW.iterations, NEW.is_active)
      IS DISTINCT FROM
      (OLD.id, OLD.organization_id, OLD.project_id, OLD.version, OLD.managed, OLD.iterations, OLD.is_active)
    OR (NEW.created_at, NEW.rotated_at) IS DISTINCT FROM (OLD.created_at, OLD.rotated_at)
    OR NEW.hint IS DISTINCT FROM OLD.hint
    OR NEW.key_check_hash IS DISTINCT FROM OLD.key_check_hash
    OR (NEW.key_check IS NULL) <> (OLD.key_check IS NULL)
    OR (NOT rewrap AND (NEW.salt, NEW.key_check) IS DISTINCT FROM (OLD.salt, OLD.key_check))
    OR (NEW.key_string IS NOT NULL AND NEW.key_string IS DISTINCT FROM OLD.key_string
      AND NOT (rewrap AND OLD.key_string IS NOT NULL))
    OR (NEW.data_key IS NOT NULL AND NEW.data_key IS DISTINCT FROM OLD.data_key
      AND NOT (rewrap AND OLD.data_key IS NOT NULL))
  THEN
    RAISE EXCEPTION 'a rotated key is never changed' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER keep_rotated_key BEFORE UPDATE ON encryption_keys
  FOR EACH ROW WHEN (OLD.rotated_at IS NOT NULL) EXECUTE FUNCTION keep_rotated_key();

CREATE TABLE re_encryptions (
  organization_id char(26) NOT NULL,
  project_id char(26) NOT NULL,
  total integer NOT NULL,
  moved integer NOT NULL DEFAULT 0,
  started_at timestamptz(3) NOT NULL DEFAULT now(),
  finished_at timestamptz(3),
  unreadable integer NOT NULL DEFAULT 0,
  CONSTRAINT re_encryptions_organization_id_project_id_pk PRIMARY KEY (organization_id, project_id),
  CONSTRAINT re_encryptions_in_project FOREIGN KEY (organization_id, project_id)
    REFERENCES projects (organization_id, id) ON DELETE CASCADE
);
CREATE INDEX re_encryptions_under_way ON re_encryptions (organization_id, project_id) WHERE finished_at IS NULL;
--> statement-breakpoint

-- Levels, documents and versions

CREATE TABLE targets (
  id char(26) NOT NULL,
  organization_id char(26) NOT NULL,
  project_id char(26) NOT NULL,
  name varchar(255) NOT NULL,
  slug varchar(64) NOT NULL,
  description text,
  environment_count integer NOT NULL DEFAULT 0,
  secret_count integer NOT NULL DEFAULT 0,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT targets_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT targets_in_project FOREIGN KEY (organization_id, project_id)
    REFERENCES projects (organization_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX targets_slug_taken ON targets (organization_id, project_id, slug);

CREATE TABLE environments (
  id char(26) NOT NULL,
  organization_id char(26) NOT NULL,
  project_id char(26) NOT NULL,
  target_id char(26) NOT NULL,
  name varchar(255) NOT NULL,
  slug varchar(64) NOT NULL,
  description text,
  status varchar(64) NOT NULL,
  is_production boolean NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT environments_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT environments_in_project FOREIGN KEY (organization_id, project_id)
    REFERENCES projects (organization_id, id) ON DELETE CASCADE,
  CONSTRAINT environments_in_target FOREIGN KEY (organization_id, target_id)
    REFERENCES targets (organization_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX environments_slug_taken ON environments (organization_id, target_id, slug);
CREATE INDEX environments_organization_id_project_id_index ON environments (organization_id, project_id);

CREATE TABLE histories (
  organization_id char(26) NOT NULL,
  id char(26) NOT NULL,
  removed_at timestamptz(3),
  CONSTRAINT histories_organization_id_id_pk PRIMARY KEY (organization_id, id)
);
CREATE INDEX histories_removed ON histories (organization_id, id) WHERE removed_at IS NOT NULL;

CREATE TABLE secrets (
  id char(26) NOT NULL,
  organization_id char(26) NOT NULL,
  project_id char(26) NOT NULL,
  target_id char(26),
  environment_id char(26),
  level varchar(16) NOT NULL,
  level_id char(26) NOT NULL,
  revision bigint NOT NULL,
  key_version integer NOT NULL,
  sealed bytea,
  size_bytes integer NOT NULL,
  version bigint,
  history_id char(26) NOT NULL,
  version_count integer NOT NULL DEFAULT 0,
  version_bytes bigint NOT NULL DEFAULT 0,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  mac bytea,
  CONSTRAINT secrets_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT secrets_in_project FOREIGN KEY (organization_id, project_id)
    REFERENCES projects (organization_id, id) ON DELETE CASCADE,
  CONSTRAINT secrets_in_target FOREIGN KEY (organization_id, target_id)
    REFERENCES targets (organization_id, id) ON DELETE CASCADE,
  CONSTRAINT secrets_in_environment FOREIGN KEY (organization_id, environment_id)
    REFERENCES environments (organization_id, id) ON DELETE CASCADE,
  CONSTRAINT secrets_in_history FOREIGN KEY (organization_id, history_id) REFERENCES histories (organization_id, id)
);
CREATE UNIQUE INDEX secrets_one_of_level ON secrets (organization_id, level_id);
CREATE UNIQUE INDEX secrets_one_of_history ON secrets (organization_id, history_id);
CREATE INDEX secrets_organization_id_project_id_id_index ON secrets (organization_id, project_id, id);
CREATE INDEX secrets_organization_id_target_id_index ON secrets (organization_id, target_id);
CREATE INDEX secrets_organization_id_environment_id_index ON secrets (organization_id, environment_id);

CREATE TABLE secret_versions (
  organization_id char(26) NOT NULL,
  id bigint NOT NULL,
  history_id char(26) NOT NULL,
  action varchar(16) NOT NULL,
  revision bigint NOT NULL,
  key_version integer NOT NULL,
  sealed bytea NOT NULL,
  size_bytes integer NOT NULL,
  restored_from bigint,
  created_by_id bigint,
  created_by_name varchar(255),
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT secret_versions_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT secret_versions_in_history FOREIGN KEY (organization_id, history_id)
    REFERENCES histories (organization_id, id) ON DELETE CASCADE
);
CREATE INDEX secret_versions_of_history ON secret_versions (organization_id, history_id, id);
CREATE INDEX secret_versions_by_key ON secret_versions (organization_id, history_id, key_version, id, created_at);
--> statement-breakpoint

-- Audit

CREATE TABLE audit_events (
  organization_id char(26) NOT NULL,
  seq bigint NOT NULL,
  occurred_at timestamptz(3) NOT NULL DEFAULT now(),
  action varchar(64) NOT NULL,
  actor_type varchar(16) NOT NULL,
  actor_id bigint,
  resource_type varchar(32) NOT NULL,
  resource_id varchar(64),
  request_id varchar(64),
  ip varchar(64),
  user_agent varchar(256),
  details jsonb,
  chain_kid varchar(32) NOT NULL,
  mac bytea NOT NULL,
  CONSTRAINT audit_events_organization_id_seq_pk PRIMARY KEY (organization_id, seq),
  CONSTRAINT audit_events_numbers CHECK (seq > 0)
);
CREATE INDEX audit_events_by_time ON audit_events (organization_id, occurred_at, seq);
CREATE INDEX audit_events_by_action ON audit_events (organization_id, action, occurred_at, seq);
CREATE INDEX audit_events_by_actor ON audit_events (organization_id, actor_type, actor_id, action, occurred_at, seq);
CREATE INDEX audit_events_by_resource ON audit_events
  (organization_id, resource_type, resource_id, action, occurred_at, seq);
CREATE INDEX audit_events_by_resource_and_actor ON audit_events
  (organization_id, resource_type, resource_id, actor_type, actor_id, action, occurred_at, seq);

-- The service may not change or delete an event either. Whoever owns the tables can, and `audit verify` finds that.
CREATE FUNCTION keep_audit_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'an audit event is never changed' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER keep_audit_event BEFORE UPDATE OR DELETE ON audit_events
  FOR EACH ROW EXECUTE FUNCTION keep_audit_event();
CREATE TRIGGER keep_audit_events BEFORE TRUNCATE ON audit_events
  FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_event();

CREATE TABLE late_events (
  organization_id char(26) NOT NULL,
  id bigint GENERATED ALWAYS AS IDENTITY,
  occurred_at timestamptz(3) NOT NULL DEFAULT now(),
  event jsonb NOT NULL,
  mac bytea,
  CONSTRAINT late_events_organization_id_id_pk PRIMARY KEY (organization_id, id)
);

CREATE TABLE chain_keys (
  organization_id char(26) NOT NULL,
  kid char(26) NOT NULL,
  from_seq bigint NOT NULL,
  wrapped bytea NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT chain_keys_organization_id_kid_pk PRIMARY KEY (organization_id, kid)
);
CREATE UNIQUE INDEX chain_keys_in_order ON chain_keys (organization_id, from_seq);
--> statement-breakpoint

-- Billing

CREATE TABLE coupons (
  code varchar(64) PRIMARY KEY,
  percent_off integer,
  amount_off bigint,
  currency char(3),
  valid_until timestamptz(3),
  max_redemptions integer,
  redemptions integer NOT NULL DEFAULT 0,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT coupons_off CHECK (CASE WHEN percent_off IS NULL
    THEN amount_off > 0 AND currency IS NOT NULL
    ELSE percent_off BETWEEN 1 AND 100 AND amount_off IS NULL AND currency IS NULL
  END)
);

CREATE TABLE billing_accounts (
  organization_id char(26) PRIMARY KEY,
  name varchar(255) NOT NULL DEFAULT '',
  address varchar(1000) NOT NULL DEFAULT '',
  tax_id varchar(64) NOT NULL DEFAULT '',
  next_invoice integer NOT NULL DEFAULT 1,
  coupon varchar(64),
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT billing_accounts_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE,
  CONSTRAINT billing_accounts_coupon_coupons_code_fk FOREIGN KEY (coupon) REFERENCES coupons (code)
);

CREATE TABLE credits (
  organization_id char(26) NOT NULL,
  currency char(3) NOT NULL,
  amount bigint NOT NULL,
  CONSTRAINT credits_organization_id_currency_pk PRIMARY KEY (organization_id, currency),
  CONSTRAINT credits_amount CHECK (amount >= 0),
  CONSTRAINT credits_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE
);

CREATE TABLE coupon_redemptions (
  organization_id char(26) NOT NULL,
  coupon varchar(64) NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT coupon_redemptions_organization_id_coupon_pk PRIMARY KEY (organization_id, coupon),
  CONSTRAINT coupon_redemptions_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE,
  CONSTRAINT coupon_redemptions_coupon_coupons_code_fk FOREIGN KEY (coupon) REFERENCES coupons (code)
);

CREATE TABLE invoices (
  organization_id char(26) NOT NULL,
  id char(26) NOT NULL,
  number integer NOT NULL,
  status varchar(8) NOT NULL,
  currency char(3) NOT NULL,
  lines jsonb NOT NULL,
  subtotal bigint NOT NULL,
  discount bigint NOT NULL,
  credit bigint NOT NULL,
  total bigint NOT NULL,
  unused bigint NOT NULL DEFAULT 0,
  seller jsonb NOT NULL,
  buyer jsonb NOT NULL,
  reference varchar(255),
  note varchar(1000) NOT NULL DEFAULT '',
  issued_at timestamptz(3) NOT NULL DEFAULT now(),
  due_at timestamptz(3) NOT NULL,
  paid_at timestamptz(3),
  CONSTRAINT invoices_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT invoices_total CHECK (total >= 0 AND subtotal = discount + credit + total),
  CONSTRAINT invoices_unused CHECK (unused BETWEEN 0 AND credit + total)
);
CREATE UNIQUE INDEX invoices_number_taken ON invoices (organization_id, number);

CREATE TABLE subscriptions (
  organization_id char(26) PRIMARY KEY,
  id char(26) NOT NULL,
  plan varchar(64) NOT NULL,
  interval varchar(8) NOT NULL,
  currency char(3) NOT NULL,
  amount bigint NOT NULL,
  anchor timestamptz(3) NOT NULL,
  periods integer NOT NULL DEFAULT 0,
  period_start timestamptz(3) NOT NULL,
  period_end timestamptz(3) NOT NULL,
  invoice_id char(26) NOT NULL,
  cancel_at_period_end boolean NOT NULL DEFAULT false,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  updated_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT subscriptions_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE,
  CONSTRAINT subscriptions_plan_plans_name_fk FOREIGN KEY (plan) REFERENCES plans (name),
  CONSTRAINT subscriptions_on_invoice FOREIGN KEY (organization_id, invoice_id)
    REFERENCES invoices (organization_id, id)
);
CREATE INDEX subscriptions_period_end_index ON subscriptions (period_end);

CREATE TABLE payment_methods (
  organization_id char(26) NOT NULL,
  id char(26) NOT NULL,
  kind varchar(16) NOT NULL,
  label varchar(255) NOT NULL,
  reference varchar(255),
  is_default boolean NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT payment_methods_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT payment_methods_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX payment_methods_one_default ON payment_methods (organization_id) WHERE is_default;

CREATE TABLE charges (
  organization_id char(26) NOT NULL,
  id char(26) NOT NULL,
  invoice_id char(26) NOT NULL,
  payment_method_id char(26),
  provider varchar(32) NOT NULL,
  provider_reference varchar(255),
  provider_status varchar(16),
  noted_status varchar(16),
  status varchar(16) NOT NULL DEFAULT 'pending',
  currency char(3) NOT NULL,
  amount bigint NOT NULL,
  refunded bigint NOT NULL DEFAULT 0,
  asked_at timestamptz(3),
  submitted_at timestamptz(3),
  settled_at timestamptz(3),
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT charges_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT charges_refunded CHECK (amount > 0 AND refunded BETWEEN 0 AND amount),
  CONSTRAINT charges_of_invoice FOREIGN KEY (organization_id, invoice_id) REFERENCES invoices (organization_id, id)
);
CREATE INDEX charges_by_invoice ON charges (organization_id, invoice_id);
CREATE INDEX charges_to_submit ON charges (provider, asked_at NULLS FIRST, id) WHERE submitted_at IS NULL;

CREATE TABLE refunds (
  organization_id char(26) NOT NULL,
  id char(26) NOT NULL,
  charge_id char(26) NOT NULL,
  provider varchar(32) NOT NULL,
  provider_reference varchar(255),
  provider_status varchar(16),
  noted_status varchar(16),
  checked_at timestamptz(3),
  status varchar(16) NOT NULL DEFAULT 'pending',
  amount bigint NOT NULL,
  reason varchar(255),
  asked_at timestamptz(3),
  submitted_at timestamptz(3),
  settled_at timestamptz(3),
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT refunds_organization_id_id_pk PRIMARY KEY (organization_id, id),
  CONSTRAINT refunds_amount CHECK (amount > 0),
  CONSTRAINT refunds_of_charge FOREIGN KEY (organization_id, charge_id) REFERENCES charges (organization_id, id)
);
CREATE INDEX refunds_by_charge ON refunds (organization_id, charge_id);
CREATE INDEX refunds_to_submit ON refunds (provider, asked_at NULLS FIRST, id) WHERE submitted_at IS NULL;

CREATE TABLE api_usage (
  organization_id char(26) NOT NULL,
  day date NOT NULL,
  calls bigint NOT NULL,
  CONSTRAINT api_usage_organization_id_day_pk PRIMARY KEY (organization_id, day),
  CONSTRAINT api_usage_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE
);
--> statement-breakpoint

-- Repeated requests

CREATE TABLE idempotency_keys (
  organization_id char(26) NOT NULL,
  principal varchar(32) NOT NULL,
  key varchar(255) NOT NULL,
  request bytea NOT NULL,
  status integer NOT NULL,
  answer jsonb NOT NULL,
  created_at timestamptz(3) NOT NULL DEFAULT now(),
  CONSTRAINT idempotency_keys_organization_id_principal_key_pk PRIMARY KEY (organization_id, principal, key),
  CONSTRAINT idempotency_keys_organization_id_organizations_id_fk FOREIGN KEY (organization_id)
    REFERENCES organizations (id) ON DELETE CASCADE
);
CREATE INDEX idempotency_keys_created_at_index ON idempotency_keys (created_at);
