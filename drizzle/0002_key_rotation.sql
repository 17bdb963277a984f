CREATE TABLE "re_encryptions" (
	"project_id" char(26) PRIMARY KEY NOT NULL,
	"organization_id" char(26) NOT NULL,
	"total" integer NOT NULL,
	"moved" integer DEFAULT 0 NOT NULL,
	"started_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"finished_at" timestamp (3) with time zone
);
--> statement-breakpoint
ALTER TABLE "encryption_keys" DROP CONSTRAINT "encryption_keys_custody";--> statement-breakpoint
ALTER TABLE "re_encryptions" ADD CONSTRAINT "re_encryptions_project_id_projects_id_fk" FOREIGN KEY ("project_id") REFERENCES "public"."projects"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "re_encryptions_under_way" ON "re_encryptions" USING btree ("project_id") WHERE "re_encryptions"."finished_at" is null;--> statement-breakpoint
ALTER TABLE "encryption_keys" ADD CONSTRAINT "encryption_keys_custody" CHECK (CASE WHEN "encryption_keys"."managed" = 'client' THEN "encryption_keys"."key_string" is null AND "encryption_keys"."data_key" is null AND "encryption_keys"."key_check" is not null
    ELSE "encryption_keys"."key_check" is null AND ("encryption_keys"."key_string" is null) = ("encryption_keys"."data_key" is null) AND ("encryption_keys"."key_string" is not null OR NOT "encryption_keys"."is_active") END);