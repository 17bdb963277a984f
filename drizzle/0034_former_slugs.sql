CREATE TABLE "former_slugs" (
	"organization_id" char(26) NOT NULL,
	"slug" varchar(64) NOT NULL,
	"reserved_until" timestamp (3) with time zone NOT NULL,
	CONSTRAINT "former_slugs_organization_id_slug_pk" PRIMARY KEY("organization_id","slug"),
	CONSTRAINT "former_slugs_slug_unique" UNIQUE("slug")
);
--> statement-breakpoint
CREATE INDEX "former_slugs_by_end" ON "former_slugs" USING btree ("reserved_until");