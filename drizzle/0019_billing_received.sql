CREATE TABLE "coupon_redemptions" (
	"organization_id" char(26) NOT NULL,
	"coupon" varchar(64) NOT NULL,
	"created_at" timestamp (3) with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "coupon_redemptions_organization_id_coupon_pk" PRIMARY KEY("organization_id","coupon")
);
--> statement-breakpoint
CREATE TABLE "credits" (
	"organization_id" char(26) NOT NULL,
	"currency" char(3) NOT NULL,
	"amount" bigint NOT NULL,
	CONSTRAINT "credits_organization_id_currency_pk" PRIMARY KEY("organization_id","currency"),
	CONSTRAINT "credits_amount" CHECK ("credits"."amount" >= 0)
);
--> statement-breakpoint
ALTER TABLE "billing_accounts" DROP CONSTRAINT "billing_accounts_credit";--> statement-breakpoint
DROP INDEX "idempotency_keys_organization_id_created_at_index";--> statement-breakpoint
ALTER TABLE "charges" ADD COLUMN "provider_status" varchar(16);--> statement-breakpoint
ALTER TABLE "invoices" ADD COLUMN "unused" bigint DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "refunds" ADD COLUMN "provider" varchar(32);--> statement-breakpoint
ALTER TABLE "refunds" ADD COLUMN "provider_status" varchar(16);--> statement-breakpoint
ALTER TABLE "subscriptions" ADD COLUMN "invoice_id" char(26);--> statement-breakpoint
-- What has a reference, the provider has answered; anything else the operator has noted down.
UPDATE "charges" SET "provider_status" = "status" WHERE "provider_reference" is not null;--> statement-breakpoint
UPDATE "refunds" SET "provider_status" = "status" WHERE "provider_reference" is not null;--> statement-breakpoint
UPDATE "refunds" SET "provider" = "charges"."provider" FROM "charges"
	WHERE "charges"."organization_id" = "refunds"."organization_id" AND "charges"."id" = "refunds"."charge_id";--> statement-breakpoint
ALTER TABLE "refunds" ALTER COLUMN "provider" SET NOT NULL;--> statement-breakpoint
-- The invoice that names the period; where none does, the latest one.
UPDATE "subscriptions" SET "invoice_id" = (SELECT "id" FROM "invoices"
	WHERE "invoices"."organization_id" = "subscriptions"."organization_id"
	ORDER BY coalesce(("invoices"."lines" #>> '{0,period_start}')::timestamptz = "subscriptions"."period_start", false) DESC,
	"invoices"."number" DESC LIMIT 1);--> statement-breakpoint
ALTER TABLE "subscriptions" ALTER COLUMN "invoice_id" SET NOT NULL;--> statement-breakpoint
INSERT INTO "credits" SELECT "organization_id", "credit_currency", "credit" FROM "billing_accounts" WHERE "credit" > 0;--> statement-breakpoint
INSERT INTO "coupon_redemptions" ("organization_id", "coupon")
	SELECT "organization_id", "coupon" FROM "billing_accounts" WHERE "coupon" is not null;--> statement-breakpoint
ALTER TABLE "coupon_redemptions" ADD CONSTRAINT "coupon_redemptions_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "coupon_redemptions" ADD CONSTRAINT "coupon_redemptions_coupon_coupons_code_fk" FOREIGN KEY ("coupon") REFERENCES "public"."coupons"("code") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "credits" ADD CONSTRAINT "credits_organization_id_organizations_id_fk" FOREIGN KEY ("organization_id") REFERENCES "public"."organizations"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "subscriptions" ADD CONSTRAINT "subscriptions_on_invoice" FOREIGN KEY ("organization_id","invoice_id") REFERENCES "public"."invoices"("organization_id","id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "idempotency_keys_created_at_index" ON "idempotency_keys" USING btree ("created_at");--> statement-breakpoint
ALTER TABLE "billing_accounts" DROP COLUMN "credit";--> statement-breakpoint
ALTER TABLE "billing_accounts" DROP COLUMN "credit_currency";--> statement-breakpoint
ALTER TABLE "subscriptions" DROP COLUMN "invoiced";--> statement-breakpoint
ALTER TABLE "invoices" ADD CONSTRAINT "invoices_unused" CHECK ("invoices"."unused" BETWEEN 0 AND "invoices"."credit" + "invoices"."total");