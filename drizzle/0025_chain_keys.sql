CREATE TABLE "chain_keys" (
	"organization_id" char(26) NOT NULL,
	"kid" char(26) NOT NULL,
	"from_seq" bigint NOT NULL,
	"wrapped" "bytea" NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "chain_keys_organization_id_kid_pk" PRIMARY KEY("organization_id","kid")
);
--> statement-breakpoint
ALTER TABLE "organization_counters" ADD COLUMN "chain_kid" char(26);--> statement-breakpoint
CREATE UNIQUE INDEX "chain_keys_in_order" ON "chain_keys" USING btree ("organization_id","from_seq");