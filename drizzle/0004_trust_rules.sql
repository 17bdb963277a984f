CREATE TABLE "organization_restores" (
	"organization_id" char(26) PRIMARY KEY NOT NULL,
	"restored_at" timestamp (3) with time zone NOT NULL
);
--> statement-breakpoint
CREATE TABLE "spent_assertions" (
	"organization_id" char(26) NOT NULL,
	"rule_id" bigint NOT NULL,
	"spend" char(64) NOT NULL,
	"expires_at" timestamp (3) with time zone NOT NULL,
	CONSTRAINT "spent_assertions_organization_id_rule_id_spend_pk" PRIMARY KEY("organization_id","rule_id","spend")
);
--> statement-breakpoint
CREATE TABLE "workload_rules" (
	"organization_id" char(26) NOT NULL,
	"id" bigint NOT NULL,
	"name" varchar(255) NOT NULL,
	"description" text,
	"enabled" boolean NOT NULL,
	"preset" varchar(32),
	"issuer" text NOT NULL,
	"jwks" jsonb,
	"audience" text NOT NULL,
	"claims" jsonb NOT NULL,
	"scopes" text[] NOT NULL,
	"slices" jsonb,
	"lifetime" integer NOT NULL,
	"single_use" boolean NOT NULL,
	"max_assertion_age" integer NOT NULL,
	"revision" bigint NOT NULL,
	"created_by_type" varchar(16),
	"created_by_id" bigint,
	"created_by_name" varchar(255),
	"user_id" bigint,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	"mac" "bytea",
	CONSTRAINT "workload_rules_organization_id_id_pk" PRIMARY KEY("organization_id","id")
);
--> statement-breakpoint
ALTER TABLE "organization_restores" ADD CONSTRAINT "organization_restores_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "workload_rules" ADD CONSTRAINT "workload_rules_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "spent_assertions_expires_at_index" ON "spent_assertions" USING btree ("expires_at");