import { and, asc, desc, eq, getTableColumns, gt, lte, sql } from 'drizzle-orm'
import { MAX_WORKLOADS, type WorkloadAttributes } from '../../../schemas/workloads.ts'
import { changedAt } from '../../db/columns.ts'
import { shownOf, type NewRow, type RowChanges } from '../../db/rows/authenticated.ts'
import { creatorOf, shownCreator, type Maker } from '../../db/rows/creator.ts'
import { makeId } from '../../db/rows/ids.ts'
import { isAuthentic, macOf, updateAuthentic, type Db } from '../../db/database.ts'
import { authenticRow, matching, queryRows } from '../../db/rows/query.ts'
import { andSelected, named, orderOf } from '../../db/rows/selection.ts'
import { namesNoLevel } from '../../db/rows/slices.ts'
import { findSlugs, idsOf } from '../../db/rows/slugs.ts'
import { organization_restores, spent_assertions, workload_rules } from '../../db/tables.ts'
import { workloadIdOf } from '../../rules/formats/ids.ts'
import { offsetOf, type NamedPageRequest } from '../../rules/pagination.ts'
import { coversAll, shownRestrictions, type LevelsById, type Slice } from '../../rules/slices.ts'

// Trust rules. A row is changed under the lock of its organization.

export type RuleRow = typeof workload_rules.$inferSelect
export interface ShownRule { id: number, attributes: WorkloadAttributes }

const columns = getTableColumns(workload_rules)
const oneOf = (organizationId: string, id: number) => matching(workload_rules, { organization_id: organizationId, id })

type NewRule = Omit<NewRow<'workload_rules'>, 'id' | 'slices' | 'revision' | keyof ReturnType<typeof creatorOf>> &
  { slices: Slice[], made_by: Maker }

export async function createRule (db: Db, { made_by, slices, ...rule }: NewRule): Promise<ShownRule | undefined> {
  const row = { ...rule, id: makeId(), revision: makeId(), slices: storedSlices(slices), ...creatorOf(made_by) }
  await db.insert(workload_rules).values({ ...row, mac: macOf(db, 'workload_rules', row) })
  return findShown(db, row.organization_id, row.id)
}

const storedSlices = (slices: Slice[]) => slices.length === 0 ? null : slices

type Changes = Omit<RowChanges<'workload_rules'>, 'organization_id' | 'id' | 'revision' | 'slices'>

/**
 * Changes a rule. A changed field other than `name` and `description` gives the rule a new revision, which ends its
 * tokens. Undefined if the rule has a wrong MAC.
 */
export async function updateRule (
  db: Db, rule: RuleRow, { name, description, slices, ...sent }: Changes & { slices?: Slice[] | undefined }
): Promise<ShownRule | undefined> {
  const { organization_id, id } = rule
  const others = { ...sent, ...(slices && { slices: storedSlices(slices) }) }
  const isSame = rule.mac?.equals(macOf(db, 'workload_rules', { ...rule, ...others })) === true
  const changes = { ...others, name, description, revision: isSame ? undefined : makeId() }
  const changed = await updateAuthentic(db, 'workload_rules', oneOf(organization_id, id), {
    ...changes, updated_at: changedAt(workload_rules.updated_at, changes)
  })
  return changed && findShown(db, organization_id, id)
}

export async function deleteRule (db: Db, organizationId: string, id: number): Promise<void> {
  await db.delete(workload_rules).where(oneOf(organizationId, id))
}

/** Deletes the rules whose restrictions all name deleted levels, as with API tokens. Returns the ids. */
export async function deleteRulesOfNothing (
  db: Db, organizationId: string, deleted: Parameters<typeof namesNoLevel>[1]
): Promise<number[]> {
  const gone = await queryRows<{ id: string }>(db, sql`
    DELETE FROM workload_rules t WHERE t.organization_id = ${organizationId} AND ${namesNoLevel(organizationId, deleted)}
    RETURNING t.id`)
  return gone.map(({ id }) => Number(id)).sort((a, b) => a - b)
}

export async function countRules (db: Db, organizationId: string): Promise<number> {
  return db.$count(workload_rules, eq(workload_rules.organization_id, organizationId))
}

/** A rule; undefined if it does not exist or has a wrong MAC. */
export async function findRule (db: Db, organizationId: string, id: number): Promise<RuleRow | undefined> {
  const [row] = await db.select(columns).from(workload_rules).where(oneOf(organizationId, id))
  return authenticRow(db, 'workload_rules', row)
}

/** The restrictions of a rule, also of one with a wrong MAC, which can be deleted. Undefined if it does not exist. */
export async function findRuleSlices (db: Db, organizationId: string, id: number): Promise<Slice[] | undefined> {
  const [row] = await db.select({ slices: workload_rules.slices }).from(workload_rules).where(oneOf(organizationId, id))
  return row && (row.slices ?? [])
}

async function findShown (db: Db, organizationId: string, id: number): Promise<ShownRule | undefined> {
  const row = await findRule(db, organizationId, id)
  return row && showRule(db, row)
}

export const showRule = async (db: Db, row: RuleRow): Promise<ShownRule> =>
  toShown(row, await findSlugs(db, row.organization_id, idsOf(row.slices ?? [])))

function toShown (row: RuleRow, levels: LevelsById): ShownRule {
  const { id, created_by_type, created_by_id, created_by_name, ...shown } = shownOf('workload_rules', row)
  return {
    id,
    attributes: {
      ...shown,
      public_id: workloadIdOf(row.organization_id, id),
      ...shownRestrictions(row.slices, levels),
      created_by: shownCreator({ created_by_type, created_by_id, created_by_name })
    }
  }
}

const SELECTABLE = named(sql`${workload_rules}`, ['name'])

// Stored bytes of claims, keys and restrictions, which are often compressed: those of a few rules at their limits.
const MANY = 64 * 1024

/** Whether the rules of an organization are so large that a list of them takes long. */
export async function areRulesLarge (db: Db, organizationId: string): Promise<boolean> {
  const { jwks, claims, slices } = columns
  const sizes = [jwks, claims, slices].map((column) => sql`coalesce(pg_column_size(${column}), 0)`)
  const [row] = await db.select({ bytes: sql<number>`coalesce(sum(${sql.join(sizes, sql` + `)}), 0)::int` })
    .from(workload_rules).where(eq(workload_rules.organization_id, organizationId))
  return row!.bytes > MANY
}

/**
 * A page of the rules within the caller's restrictions, by default newest first. Omits rows with a wrong MAC. With
 * `pace`, works in steps, and calls it after each of them with its begin (`performance.now`).
 */
export async function listRules (
  db: Db, organizationId: string, slices: readonly Slice[], page: NamedPageRequest,
  pace?: (began: number) => Promise<void>
): Promise<{ rows: ShownRule[], total: number }> {
  const its = sql`${eq(workload_rules.organization_id, organizationId)}${andSelected(page, SELECTABLE)}`
  const found = await db.select(columns).from(workload_rules).where(its)
    .orderBy(orderOf(page, SELECTABLE, desc(workload_rules.id))).limit(MAX_WORKLOADS)
  const all: RuleRow[] = []
  for (const row of found) {
    const began = performance.now()
    if (isAuthentic(db, 'workload_rules', row) && coversAll(slices, row.slices ?? [])) all.push(row)
    await pace?.(began)
  }
  const rows = all.slice(offsetOf(page), offsetOf(page) + page.per_page)
  const slugs = await findSlugs(db, organizationId, idsOf(rows.flatMap((row) => row.slices ?? [])), pace)
  const shown: ShownRule[] = []
  for (const row of rows) {
    const began = performance.now()
    shown.push(toShown(row, slugs))
    await pace?.(began)
  }
  return { rows: shown, total: all.length }
}

/** The ids of the rules that a person created, also through a token. */
export async function listRulesOf (db: Db, organizationId: string, userId: number): Promise<number[]> {
  const rows = await db.select(columns).from(workload_rules)
    .where(matching(workload_rules, { organization_id: organizationId, user_id: userId }))
    .orderBy(asc(workload_rules.id)).limit(MAX_WORKLOADS)
  return rows.filter((row) => isAuthentic(db, 'workload_rules', row)).map(({ id }) => id)
}

/** When the organization was restored from a backup; null if it was not. */
export async function findRestore (db: Db, organizationId: string): Promise<Date | null> {
  const [row] = await db.select({ restored_at: organization_restores.restored_at }).from(organization_restores)
    .where(eq(organization_restores.organization_id, organizationId))
  return row?.restored_at ?? null
}

export interface Spent { organization_id: string, rule_id: number, spend: string }

/** Marks an assertion as used. Returns false if it was used before. At `expires_at`, every rule refuses it. */
export async function spendAssertion (db: Db, spent: Spent & { expires_at: Date }): Promise<boolean> {
  const made = await db.insert(spent_assertions).values(spent).onConflictDoNothing()
    .returning({ rule_id: spent_assertions.rule_id })
  return made.length === 1
}

export async function isSpent (db: Db, spent: Spent): Promise<boolean> {
  return await db.$count(spent_assertions, matching(spent_assertions, { ...spent })) > 0
}

const { organization_id, rule_id, expires_at } = spent_assertions

/** A page of all organizations with used assertions that have expired. The page starts after an id. */
export async function listOwnersOfExpiredAssertions (db: Db, after: string, limit: number): Promise<string[]> {
  return (await db.selectDistinct({ organization_id }).from(spent_assertions)
    .where(and(gt(organization_id, after), lte(expires_at, sql`now()`))).orderBy(asc(organization_id)).limit(limit))
    .map((row) => row.organization_id)
}

/** Deletes at most `limit` used assertions of an organization that have expired. Returns their number. */
export async function deleteExpiredAssertions (db: Db, organizationId: string, limit: number): Promise<number> {
  const own = eq(organization_id, organizationId)
  const expired = db.select({ place: sql`ctid` }).from(spent_assertions).where(and(own, lte(expires_at, sql`now()`)))
    .limit(limit).for('update', { skipLocked: true })
  return (await db.delete(spent_assertions).where(and(own, sql`ctid IN (${expired})`)).returning({ rule_id })).length
}
