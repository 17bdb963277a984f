CREATE TABLE "token_removals" (
	"organization_id" char(26) NOT NULL,
	"ended" varchar(16) NOT NULL,
	"ended_id" bigint NOT NULL,
	CONSTRAINT "token_removals_organization_id_ended_ended_id_pk" PRIMARY KEY("organization_id","ended","ended_id")
);
