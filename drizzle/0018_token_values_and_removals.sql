CREATE TABLE "former_token_hashes" (
	"organization_id" char(26) NOT NULL,
	"token_id" bigint NOT NULL,
	"token_hash" "bytea" NOT NULL,
	"expires_at" timestamp (3) with time zone NOT NULL,
	"mac" "bytea",
	CONSTRAINT "former_token_hashes_organization_id_token_id_pk" PRIMARY KEY("organization_id","token_id"),
	CONSTRAINT "former_token_hashes_token_hash_unique" UNIQUE("token_hash")
);
--> statement-breakpoint
CREATE TABLE "organization_removals" (
	"organization_id" char(26) PRIMARY KEY NOT NULL,
	"removed_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
ALTER TABLE "histories" DROP CONSTRAINT "histories_organization_id_organizations_id_fk";
--> statement-breakpoint
ALTER TABLE "projects" DROP CONSTRAINT "projects_organization_id_organizations_id_fk";
--> statement-breakpoint
DROP INDEX "api_tokens_organization_id_index";--> statement-breakpoint
ALTER TABLE "api_tokens" ADD CONSTRAINT "api_tokens_of_organization" UNIQUE("organization_id","id");--> statement-breakpoint
ALTER TABLE "former_token_hashes" ADD CONSTRAINT "former_token_hashes_of_token" FOREIGN KEY ("organization_id","token_id") REFERENCES "public"."api_tokens"("organization_id","id") ON DELETE cascade ON UPDATE no action;