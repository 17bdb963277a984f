CREATE TABLE "histories" (
	"organization_id" char(26) NOT NULL,
	"id" char(26) NOT NULL,
	"removed_at" timestamp (3) with time zone,
	CONSTRAINT "histories_organization_id_id_pk" PRIMARY KEY("organization_id","id")
);--> statement-breakpoint
CREATE TABLE "project_counts" (
	"organization_id" char(26) NOT NULL,
	"project_id" char(26) NOT NULL,
	"target_count" integer DEFAULT 0 NOT NULL,
	"environment_count" integer DEFAULT 0 NOT NULL,
	"secret_count" integer DEFAULT 0 NOT NULL,
	CONSTRAINT "project_counts_organization_id_project_id_pk" PRIMARY KEY("organization_id","project_id")
);--> statement-breakpoint
ALTER TABLE "secrets" DROP CONSTRAINT "secrets_level_id_unique";--> statement-breakpoint
ALTER TABLE "encryption_keys" DROP CONSTRAINT "encryption_keys_project_id_projects_id_fk";--> statement-breakpoint
ALTER TABLE "environments" DROP CONSTRAINT "environments_project_id_projects_id_fk";--> statement-breakpoint
ALTER TABLE "environments" DROP CONSTRAINT "environments_target_id_targets_id_fk";--> statement-breakpoint
ALTER TABLE "re_encryptions" DROP CONSTRAINT "re_encryptions_project_id_projects_id_fk";--> statement-breakpoint
ALTER TABLE "secret_versions" DROP CONSTRAINT "secret_versions_secret_id_secrets_id_fk";--> statement-breakpoint
ALTER TABLE "secrets" DROP CONSTRAINT "secrets_project_id_projects_id_fk";--> statement-breakpoint
ALTER TABLE "secrets" DROP CONSTRAINT "secrets_target_id_targets_id_fk";--> statement-breakpoint
ALTER TABLE "secrets" DROP CONSTRAINT "secrets_environment_id_environments_id_fk";--> statement-breakpoint
ALTER TABLE "targets" DROP CONSTRAINT "targets_project_id_projects_id_fk";--> statement-breakpoint
ALTER TABLE "environments" DROP CONSTRAINT "environments_pkey";--> statement-breakpoint
ALTER TABLE "projects" DROP CONSTRAINT "projects_pkey";--> statement-breakpoint
ALTER TABLE "re_encryptions" DROP CONSTRAINT "re_encryptions_pkey";--> statement-breakpoint
ALTER TABLE "secrets" DROP CONSTRAINT "secrets_pkey";--> statement-breakpoint
ALTER TABLE "targets" DROP CONSTRAINT "targets_pkey";--> statement-breakpoint
DROP INDEX "encryption_keys_project_id_version_index";--> statement-breakpoint
DROP INDEX "environments_project_id_index";--> statement-breakpoint
DROP INDEX "secret_versions_secret_id_id_index";--> statement-breakpoint
DROP INDEX "secrets_project_id_index";--> statement-breakpoint
DROP INDEX "secrets_target_id_index";--> statement-breakpoint
DROP INDEX "secrets_environment_id_index";--> statement-breakpoint
DROP INDEX "encryption_keys_one_active";--> statement-breakpoint
DROP INDEX "environments_slug_taken";--> statement-breakpoint
DROP INDEX "re_encryptions_under_way";--> statement-breakpoint
DROP INDEX "targets_slug_taken";--> statement-breakpoint
ALTER TABLE "re_encryptions" ADD COLUMN "unreadable" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "secrets" ADD COLUMN "version_count" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "targets" ADD COLUMN "environment_count" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "targets" ADD COLUMN "secret_count" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
-- What is there comes along: each secret's versions hang on a history of their own, which takes the secret's id.
ALTER TABLE "secret_versions" RENAME COLUMN "secret_id" TO "history_id";--> statement-breakpoint
ALTER TABLE "secrets" ADD COLUMN "history_id" char(26);--> statement-breakpoint
INSERT INTO "histories" ("organization_id", "id") SELECT "organization_id", "id" FROM "secrets";--> statement-breakpoint
UPDATE "secrets" s SET "history_id" = s."id", "version_count" = coalesce(v."count", 0),
	"version" = CASE WHEN EXISTS (SELECT FROM "secret_versions" w WHERE w."organization_id" = s."organization_id" AND w."id" = s."version") THEN s."version" END
FROM "secrets" o LEFT JOIN (SELECT "organization_id", "history_id", count(*)::int AS "count" FROM "secret_versions" GROUP BY 1, 2) v
	ON v."organization_id" = o."organization_id" AND v."history_id" = o."id"
WHERE o."organization_id" = s."organization_id" AND o."id" = s."id";--> statement-breakpoint
ALTER TABLE "secrets" ALTER COLUMN "history_id" SET NOT NULL;--> statement-breakpoint
ALTER TABLE "environments" ADD CONSTRAINT "environments_organization_id_id_pk" PRIMARY KEY("organization_id","id");--> statement-breakpoint
ALTER TABLE "projects" ADD CONSTRAINT "projects_organization_id_id_pk" PRIMARY KEY("organization_id","id");--> statement-breakpoint
ALTER TABLE "re_encryptions" ADD CONSTRAINT "re_encryptions_organization_id_project_id_pk" PRIMARY KEY("organization_id","project_id");--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_organization_id_id_pk" PRIMARY KEY("organization_id","id");--> statement-breakpoint
ALTER TABLE "targets" ADD CONSTRAINT "targets_organization_id_id_pk" PRIMARY KEY("organization_id","id");--> statement-breakpoint
CREATE INDEX "histories_removed" ON "histories" USING btree ("organization_id","id") WHERE "histories"."removed_at" is not null;--> statement-breakpoint
CREATE UNIQUE INDEX "encryption_keys_organization_id_project_id_version_index" ON "encryption_keys" USING btree ("organization_id","project_id","version");--> statement-breakpoint
CREATE INDEX "environments_organization_id_project_id_index" ON "environments" USING btree ("organization_id","project_id");--> statement-breakpoint
CREATE INDEX "secret_versions_of_history" ON "secret_versions" USING btree ("organization_id","history_id","id");--> statement-breakpoint
CREATE INDEX "secret_versions_by_key" ON "secret_versions" USING btree ("organization_id","history_id","key_version","id","created_at");--> statement-breakpoint
CREATE UNIQUE INDEX "secrets_one_of_level" ON "secrets" USING btree ("organization_id","level_id");--> statement-breakpoint
CREATE UNIQUE INDEX "secrets_one_of_history" ON "secrets" USING btree ("organization_id","history_id");--> statement-breakpoint
CREATE INDEX "secrets_organization_id_project_id_id_index" ON "secrets" USING btree ("organization_id","project_id","id");--> statement-breakpoint
CREATE INDEX "secrets_organization_id_target_id_index" ON "secrets" USING btree ("organization_id","target_id");--> statement-breakpoint
CREATE INDEX "secrets_organization_id_environment_id_index" ON "secrets" USING btree ("organization_id","environment_id");--> statement-breakpoint
CREATE UNIQUE INDEX "encryption_keys_one_active" ON "encryption_keys" USING btree ("organization_id","project_id") WHERE "encryption_keys"."is_active";--> statement-breakpoint
CREATE UNIQUE INDEX "environments_slug_taken" ON "environments" USING btree ("organization_id","target_id","slug");--> statement-breakpoint
CREATE INDEX "re_encryptions_under_way" ON "re_encryptions" USING btree ("organization_id","project_id") WHERE "re_encryptions"."finished_at" is null;--> statement-breakpoint
CREATE UNIQUE INDEX "targets_slug_taken" ON "targets" USING btree ("organization_id","project_id","slug");--> statement-breakpoint
UPDATE "targets" t SET
	"environment_count" = (SELECT count(*)::int FROM "environments" e WHERE e."organization_id" = t."organization_id" AND e."target_id" = t."id"),
	"secret_count" = (SELECT count(*)::int FROM "secrets" s WHERE s."organization_id" = t."organization_id" AND s."target_id" = t."id" AND s."sealed" IS NOT NULL);--> statement-breakpoint
INSERT INTO "project_counts" ("organization_id", "project_id", "target_count", "environment_count", "secret_count")
SELECT p."organization_id", p."id", (SELECT count(*)::int FROM "targets" t WHERE t."organization_id" = p."organization_id" AND t."project_id" = p."id"),
	(SELECT count(*)::int FROM "environments" e WHERE e."organization_id" = p."organization_id" AND e."project_id" = p."id"),
	(SELECT count(*)::int FROM "secrets" s WHERE s."organization_id" = p."organization_id" AND s."project_id" = p."id" AND s."sealed" IS NOT NULL)
FROM "projects" p;--> statement-breakpoint
ALTER TABLE "histories" ADD CONSTRAINT "histories_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "project_counts" ADD CONSTRAINT "project_counts_in_project" FOREIGN KEY ("organization_id","project_id") REFERENCES "public"."projects"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "encryption_keys" ADD CONSTRAINT "encryption_keys_in_project" FOREIGN KEY ("organization_id","project_id") REFERENCES "public"."projects"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "environments" ADD CONSTRAINT "environments_in_project" FOREIGN KEY ("organization_id","project_id") REFERENCES "public"."projects"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "environments" ADD CONSTRAINT "environments_in_target" FOREIGN KEY ("organization_id","target_id") REFERENCES "public"."targets"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "re_encryptions" ADD CONSTRAINT "re_encryptions_in_project" FOREIGN KEY ("organization_id","project_id") REFERENCES "public"."projects"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secret_versions" ADD CONSTRAINT "secret_versions_in_history" FOREIGN KEY ("organization_id","history_id") REFERENCES "public"."histories"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_in_project" FOREIGN KEY ("organization_id","project_id") REFERENCES "public"."projects"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_in_target" FOREIGN KEY ("organization_id","target_id") REFERENCES "public"."targets"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_in_environment" FOREIGN KEY ("organization_id","environment_id") REFERENCES "public"."environments"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "secrets" ADD CONSTRAINT "secrets_in_history" FOREIGN KEY ("organization_id","history_id") REFERENCES "public"."histories"("organization_id","id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "targets" ADD CONSTRAINT "targets_in_project" FOREIGN KEY ("organization_id","project_id") REFERENCES "public"."projects"("organization_id","id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
-- A token that was narrowed to what is gone is over, as from now on it is with the delete itself.
DELETE FROM "api_tokens" t WHERE CASE WHEN jsonb_typeof(t."slices") = 'array' THEN jsonb_array_length(t."slices") > 0 AND NOT EXISTS (
	SELECT FROM jsonb_to_recordset(t."slices") AS slice ("project_id" char(26), "target_id" char(26), "environment_id" char(26))
	WHERE CASE
		WHEN slice."environment_id" IS NOT NULL THEN EXISTS (SELECT FROM "environments" e WHERE e."organization_id" = t."organization_id" AND e."id" = slice."environment_id")
		WHEN slice."target_id" IS NOT NULL THEN EXISTS (SELECT FROM "targets" g WHERE g."organization_id" = t."organization_id" AND g."id" = slice."target_id")
		ELSE EXISTS (SELECT FROM "projects" p WHERE p."organization_id" = t."organization_id" AND p."id" = slice."project_id")
	END) ELSE false END;
