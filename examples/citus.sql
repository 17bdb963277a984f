-- Places a migrated, empty database on a cluster of Citus 12 or newer: run once, on the coordinator, after
-- `strongroom migrate` and before the first start. docs/scaling.md says what this gives and what it does not;
-- test/either/tenants.test.ts holds the schema to it.

-- Triggers on distributed tables are refused unless one says that they are safe: these look at their own row alone. In
-- postgresql.conf of every machine, too.
SET citus.enable_unsafe_triggers = 'on';

-- The service makes the ids of keys itself (docs/decisions/0018): an id is unique in the installation, but no constraint
-- can say so across machines. The index is for `rewrap`, which walks through all keys by id.
ALTER TABLE encryption_keys DROP CONSTRAINT encryption_keys_pkey;
ALTER TABLE encryption_keys ADD PRIMARY KEY (organization_id, id);
CREATE INDEX encryption_keys_by_number ON encryption_keys (id);

-- Whole on each machine: what rows of organizations refer to, and what a caller is found by before anybody knows the
-- organization. A change of one is a change on each machine.
SELECT create_reference_table('plans');
SELECT create_reference_table('plan_prices');
SELECT create_reference_table('coupons');
SELECT create_reference_table('organizations');
SELECT create_reference_table('users');
SELECT create_reference_table('oauth_clients');
SELECT create_reference_table('oauth_grants');
SELECT create_reference_table('api_tokens');
SELECT create_reference_table('former_token_hashes');

-- By organization: each on one machine, with all that it has.
SELECT create_distributed_table('organization_counters', 'organization_id');
SELECT create_distributed_table('organization_removals', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('long_operations', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('token_removals', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('members', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('invitations', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('invitation_mails', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('projects', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('project_counts', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('teams', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('team_members', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('team_projects', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('encryption_keys', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('re_encryptions', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('targets', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('environments', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('histories', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('secrets', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('secret_versions', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('audit_events', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('late_events', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('chain_keys', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('billing_accounts', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('credits', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('coupon_redemptions', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('payment_methods', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('invoices', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('charges', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('refunds', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('subscriptions', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('api_usage', 'organization_id', colocate_with => 'organization_counters');
SELECT create_distributed_table('idempotency_keys', 'organization_id', colocate_with => 'organization_counters');

-- On the coordinator alone: the installation's own, and what people sign in with.
SELECT citus_add_local_table_to_metadata('master_key_canaries');
SELECT citus_add_local_table_to_metadata('service_keys');
SELECT citus_add_local_table_to_metadata('last_backup');
SELECT citus_add_local_table_to_metadata('former_slugs');
SELECT citus_add_local_table_to_metadata('sign_in_failures');
SELECT citus_add_local_table_to_metadata('sign_in_devices');
SELECT citus_add_local_table_to_metadata('password_links');
SELECT citus_add_local_table_to_metadata('personal_events');
SELECT citus_add_local_table_to_metadata('sessions');
SELECT citus_add_local_table_to_metadata('second_factors');
SELECT citus_add_local_table_to_metadata('recovery_codes');
SELECT citus_add_local_table_to_metadata('sign_in_steps');
SELECT citus_add_local_table_to_metadata('oauth_requests');
SELECT citus_add_local_table_to_metadata('oauth_codes');
SELECT citus_add_local_table_to_metadata('oauth_tokens');
