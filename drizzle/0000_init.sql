CREATE TABLE "api_tokens" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "api_tokens_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"organization_id" char(26) NOT NULL,
	"name" varchar(255) NOT NULL,
	"token_hash" "bytea" NOT NULL,
	"token_prefix" varchar(12) NOT NULL,
	"abilities" text[] NOT NULL,
	"slices" jsonb,
	"expires_at" timestamp (3) with time zone,
	"last_used_at" timestamp (3) with time zone,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "api_tokens_token_hash_unique" UNIQUE("token_hash")
);
--> statement-breakpoint
CREATE TABLE "audit_events" (
	"organization_id" char(26) NOT NULL,
	"seq" bigint NOT NULL,
	"occurred_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"action" varchar(64) NOT NULL,
	"actor_type" varchar(16) NOT NULL,
	"actor_id" bigint,
	"resource_type" varchar(32) NOT NULL,
	"resource_id" varchar(64),
	"request_id" varchar(64),
	"ip" varchar(64),
	"user_agent" varchar(256),
	"details" jsonb,
	CONSTRAINT "audit_events_organization_id_seq_pk" PRIMARY KEY("organization_id","seq")
);
--> statement-breakpoint
CREATE TABLE "encryption_keys" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "encryption_keys_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"organization_id" char(26) NOT NULL,
	"project_id" char(26) NOT NULL,
	"version" integer NOT NULL,
	"managed" varchar(8) NOT NULL,
	"key_string" "bytea",
	"data_key" "bytea",
	"key_check" "bytea",
	"salt" "bytea" NOT NULL,
	"iterations" integer NOT NULL,
	"hint" varchar(255),
	"is_active" boolean NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"rotated_at" timestamp (3) with time zone,
	CONSTRAINT "encryption_keys_custody" CHECK (("encryption_keys"."managed" = 'server') = ("encryption_keys"."key_string" is not null) and ("encryption_keys"."managed" = 'server') = ("encryption_keys"."data_key" is not null) and ("encryption_keys"."managed" = 'client') = ("encryption_keys"."key_check" is not null))
);
--> statement-breakpoint
CREATE TABLE "environments" (
	"id" char(26) PRIMARY KEY NOT NULL,
	"organization_id" char(26) NOT NULL,
	"project_id" char(26) NOT NULL,
	"target_id" char(26) NOT NULL,
	"name" varchar(255) NOT NULL,
	"slug" varchar(64) NOT NULL,
	"description" text,
	"status" varchar(64) NOT NULL,
	"is_production" boolean NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "master_key_canaries" (
	"key_id" varchar(32) PRIMARY KEY NOT NULL,
	"canary" "bytea" NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "members" (
	"organization_id" char(26) NOT NULL,
	"user_id" bigint NOT NULL,
	"role" varchar(32) NOT NULL,
	"status" varchar(16) DEFAULT 'active' NOT NULL,
	"joined_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "members_organization_id_user_id_pk" PRIMARY KEY("organization_id","user_id")
);
--> statement-breakpoint
CREATE TABLE "organization_counters" (
	"organization_id" char(26) PRIMARY KEY NOT NULL,
	"next_version" bigint DEFAULT 1 NOT NULL,
	"next_event" bigint DEFAULT 1 NOT NULL
);
--> statement-breakpoint
CREATE TABLE "organizations" (
	"id" char(26) PRIMARY KEY NOT NULL,
	"name" varchar(255) NOT NULL,
	"slug" varchar(64) NOT NULL,
	"status" varchar(16) DEFAULT 'active' NOT NULL,
	"plan" varchar(64) NOT NULL,
	"storage_key" "bytea" NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "organizations_slug_unique" UNIQUE("slug")
);
--> statement-breakpoint
CREATE TABLE "plans" (
	"name" varchar(64) PRIMARY KEY NOT NULL,
	"retention_days" integer,
	"api_per_minute" integer NOT NULL,
	"max_projects" integer,
	"max_members" integer
);
--> statement-breakpoint
CREATE TABLE "projects" (
	"id" char(26) PRIMARY KEY NOT NULL,
	"organization_id" char(26) NOT NULL,
	"name" varchar(255) NOT NULL,
	"slug" varchar(64) NOT NULL,
	"description" text,
	"secret_format" varchar(8) NOT NULL,
	"encryption_type" varchar(8) NOT NULL,
	"history_policy" varchar(16) NOT NULL,
	"key_version" integer NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "secret_versions" (
	"organization_id" char(26) NOT NULL,
	"id" bigint NOT NULL,
	"secret_id" char(26) NOT NULL,
	"action" varchar(16) NOT NULL,
	"revision" bigint NOT NULL,
	"key_version" integer NOT NULL,
	"sealed" "bytea" NOT NULL,
	"size_bytes" integer NOT NULL,
	"restored_from" bigint,
	"created_by_id" bigint,
	"created_by_name" varchar(255),
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "secret_versions_organization_id_id_pk" PRIMARY KEY("organization_id","id")
);
--> statement-breakpoint
CREATE TABLE "secrets" (
	"id" char(26) PRIMARY KEY NOT NULL,
	"organization_id" char(26) NOT NULL,
	"project_id" char(26) NOT NULL,
	"target_id" char(26),
	"environment_id" char(26),
	"level" varchar(16) NOT NULL,
	"level_id" char(26) NOT NULL,
	"revision" bigint NOT NULL,
	"key_version" integer NOT NULL,
	"sealed" "bytea",
	"size_bytes" integer NOT NULL,
	"version" bigint,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "secrets_level_id_unique" UNIQUE("level_id")
);
--> statement-breakpoint
CREATE TABLE "targets" (
	"id" char(26) PRIMARY KEY NOT NULL,
	"organization_id" char(26) NOT NULL,
	"project_id" char(26) NOT NULL,
	"name" varchar(255) NOT NULL,
	"slug" varchar(64) NOT NULL,
	"description" text,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "users" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "users_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"email" varchar(320) NOT NULL,
	"email_normalized" varchar(320) NOT NULL,
	"name" varchar(255) NOT NULL,
	"password_hash" text,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "users_email_normalized_unique" UNIQUE("email_normalized")
);
--> statement-breakpoint
ALTER TABLE "api_tokens" ADD CONSTRAINT "api_tokens_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "encryption_keys" ADD CONSTRAINT "encryption_keys_project_id_projects_id_fk" FOREIGN KEY ("project_id") REFERENCES "public"."projects"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "environments" ADD CONSTRAINT "environments_project_id_projects_id_fk" FOREIGN KEY ("project_id") REFERENCES "public"."projects"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "environments" ADD CONSTRAINT "environments_target_id_targets_id_fk" FOREIGN KEY ("target_id") REFERENCES "public"."targets"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "members" ADD CONSTRAINT "members_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "members" ADD CONSTRAINT "members_user_id_users_id_fk" FOREIGN KEY ("user_id") REFERENCES "public"."users"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "organization_counters" ADD CONSTRAINT "organization_counters_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "organizations" ADD CONSTRAINT "organizations_plan_plans_name_fk" FOREIGN KEY ("plan") REFERENCES "public"."plans"("name") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "projects" ADD CONSTRAINT "projects_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secret_versions" ADD CONSTRAINT "secret_versions_secret_id_secrets_id_fk" FOREIGN KEY ("secret_id") REFERENCES "public"."secrets"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_project_id_projects_id_fk" FOREIGN KEY ("project_id") REFERENCES "public"."projects"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_target_id_targets_id_fk" FOREIGN KEY ("target_id") REFERENCES "public"."targets"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_environment_id_environments_id_fk" FOREIGN KEY ("environment_id") REFERENCES "public"."environments"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "targets" ADD CONSTRAINT "targets_project_id_projects_id_fk" FOREIGN KEY ("project_id") REFERENCES "public"."projects"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "api_tokens_organization_id_index" ON "api_tokens" USING btree ("organization_id");--> statement-breakpoint
CREATE UNIQUE INDEX "encryption_keys_project_id_version_index" ON "encryption_keys" USING btree ("project_id","version");--> statement-breakpoint
CREATE UNIQUE INDEX "encryption_keys_one_active" ON "encryption_keys" USING btree ("project_id") WHERE "encryption_keys"."is_active";--> statement-breakpoint
CREATE UNIQUE INDEX "environments_slug_taken" ON "environments" USING btree ("target_id","slug");--> statement-breakpoint
CREATE INDEX "environments_project_id_index" ON "environments" USING btree ("project_id");--> statement-breakpoint
CREATE INDEX "members_user_id_index" ON "members" USING btree ("user_id");--> statement-breakpoint
CREATE UNIQUE INDEX "projects_slug_taken" ON "projects" USING btree ("organization_id","slug");--> statement-breakpoint
CREATE INDEX "secret_versions_secret_id_id_index" ON "secret_versions" USING btree ("secret_id","id");--> statement-breakpoint
CREATE INDEX "secrets_project_id_index" ON "secrets" USING btree ("project_id");--> statement-breakpoint
CREATE INDEX "secrets_target_id_index" ON "secrets" USING btree ("target_id");--> statement-breakpoint
CREATE INDEX "secrets_environment_id_index" ON "secrets" USING btree ("environment_id");--> statement-breakpoint
CREATE UNIQUE INDEX "targets_slug_taken" ON "targets" USING btree ("project_id","slug");