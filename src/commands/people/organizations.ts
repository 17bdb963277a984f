import { ulid } from 'ulidx'
import type { OrganizationStatus } from '../../../schemas/organizations.ts'
import { transaction, type Database } from '../../db/database.ts'
import { chooseSlug } from '../../http/routes/slugs.ts'
import { eventOf, operatorOf, recordEvent } from '../../repositories/audit/audit.ts'
import { findOrganization, findPlan, releaseSlug, updateOrganization } from '../../repositories/levels/organizations.ts'
import { findStatus, lockPlan } from '../../repositories/billing/plans.ts'
import { restartPeriods } from '../../repositories/billing/subscriptions.ts'
import { findUserByEmail } from '../../repositories/people/users.ts'
import { foundOrganization } from '../../vault/organizations.ts'
import { StartError, type Opened } from '../common/open.ts'
import { everyOrganization } from './tokens.ts'

/**
 * Creates an organization, optionally with an owner. Throws a StartError, and creates nothing, when the account or the
 * plan does not exist.
 */
export async function addOrganization (
  { database, keyring }: Opened, { name, owner, plan }: { name: string, owner?: string | undefined, plan: string }
): Promise<{ id: string, slug: string }> {
  const id = ulid()
  return transaction(database.db, async (db) => {
    if (await findPlan(db, plan) === undefined) throw new StartError(`There is no plan ${plan}`)
    const user = owner === undefined ? undefined : (await findUserByEmail(db, owner))?.id
    if (owner !== undefined && user === undefined) throw new StartError(`There is no account with ${owner}. Create it with \`user add\``)
    const slug = await chooseSlug(db, 'organization', undefined, { name })
    const limit = await foundOrganization(db, keyring, { id, name, slug, plan }, user)
    if (limit !== undefined) throw new StartError(`${owner} has reached the limit of ${limit} organizations as a member or owner`)
    await recordEvent(db, operatorOf(id), eventOf('organization.create', id, { slug, plan }))
    return { id, slug }
  })
}

/**
 * Changes the plan, the status or the second-factor requirement of an organization. Throws a StartError when the
 * organization or the plan does not exist.
 */
export async function setOrganization (
  { db: handle }: Database, idOrSlug: string, changes: {
    plan?: string | undefined
    status?: OrganizationStatus | undefined
    require_second_factor?: boolean | undefined
  }
): Promise<void> {
  const { plan, status, require_second_factor } = changes
  await transaction(handle, async (db) => {
    if (plan !== undefined && await findPlan(db, plan) === undefined) throw new StartError(`There is no plan ${plan}`)
    const id = (await findOrganization(db, idOrSlug))?.id
    if (id === undefined) throw new StartError(`There is no organization ${idOrSlug}`)
    await lockPlan(db, id)
    if (status === 'active' && await findStatus(db, id) !== 'active') await restartPeriods(db, id)
    await updateOrganization(db, id, changes)
    const details = {
      ...(plan && { plan }),
      ...(status && { status }),
      ...(require_second_factor !== undefined && { require_second_factor })
    }
    await recordEvent(db, operatorOf(id), eventOf('organization.update', id, details))
  })
}

/**
 * Ends the reservation of an organization's former slug, so that another organization can take it. Throws a StartError
 * when the slug is not reserved.
 */
export async function releaseFormerSlug ({ db: handle }: Database, slug: string): Promise<void> {
  await transaction(handle, async (db) => {
    const id = await releaseSlug(db, slug)
    if (id === undefined) throw new StartError(`The slug ${slug} is not reserved`)
    await recordEvent(db, operatorOf(id), eventOf('organization.update', id, { released_slug: slug }))
  })
}

/** Every organization as one line: id, slug, status, plan, name. */
export async function * describeOrganizations ({ db }: Database): AsyncGenerator<string> {
  for await (const { id, slug, status, plan, name } of everyOrganization(db)) {
    yield [id, slug, status, plan.name, name].join('\t')
  }
}
