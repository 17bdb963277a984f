CREATE TABLE "long_operations" (
	"organization_id" char(26) PRIMARY KEY NOT NULL,
	"began_at" timestamp (3) with time zone DEFAULT now() NOT NULL
);
