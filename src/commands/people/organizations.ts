import { ulid } from 'ulidx'
import { FORMER_SLUG_DAYS, ORGANIZATION_STATUSES } from '../../../schemas/organizations.ts'
import { change } from '../../changes/change.ts'
import { changeThatCreates } from '../../changes/creation.ts'
import type { Database } from '../../db/database.ts'
import { chooseSlug } from '../../http/routes/slugs.ts'
import { eventOf, operatorOf } from '../../repositories/audit/audit.ts'
import {
  findFormerSlug, findOrganization, findPlan, releaseSlug, updateOrganization
} from '../../repositories/levels/organizations.ts'
import { restartPeriods } from '../../repositories/billing/subscriptions.ts'
import { findUserByEmail } from '../../repositories/people/users.ts'
import { foundOrganization } from '../../vault/organizations.ts'
import { changeOn, command, listing, verbs, withOpened, type Noun } from '../common/noun.ts'
import { refuse } from '../common/command-errors.ts'
import type { Opened } from '../common/open.ts'
import { rowOf, write } from '../common/stdio.ts'
import { choiceOf, emailOf, fail, nameOf, TEXT } from '../common/words.ts'
import { everyOrganization } from './tokens.ts'

export const noun: Noun = {
  help: `  organization add --name NAME [--owner EMAIL] [--plan NAME]
                                          create an organization; the owner must have an account
  organization list                       list every organization: id, slug, status, plan, name
  organization set --id ID [--plan NAME] [--status STATUS] [--require-second-factor yes|no]
                                          change an organization, by its id or slug
  organization release-slug --slug SLUG   release the former slug of an organization before ${FORMER_SLUG_DAYS} days
`,

  run: verbs('organization', {
    add: command({ name: TEXT, owner: TEXT, plan: TEXT }, async ({ name: text, owner, plan }, env) => {
      const name = nameOf('organization add needs --name', text)
      if (owner !== undefined) emailOf('organization add: --owner needs', owner)
      return withOpened(env, async (opened, config) => {
        const made = await addOrganization(opened, { name, owner, plan: plan ?? config.defaultPlan })
        await write(`Organization ${made.id} (${made.slug})\n`)
      })
    }),

    list: listing(describeOrganizations),

    set: command({ id: TEXT, plan: TEXT, status: TEXT, 'require-second-factor': TEXT }, async (given, env) => {
      const { id, plan, 'require-second-factor': required } = given
      if (!id) fail('organization set needs --id ID')
      if (plan === undefined && given.status === undefined && required === undefined) {
        fail('organization set needs --plan, --status or --require-second-factor')
      }
      if (required !== undefined && required !== 'yes' && required !== 'no') {
        fail('--require-second-factor must be yes or no')
      }
      const require_second_factor = required === undefined ? undefined : required === 'yes'
      const status = given.status === undefined
        ? undefined
        : choiceOf('--status', ORGANIZATION_STATUSES, given.status)
      return changeOn(env, (database) => setOrganization(database, id, { plan, status, require_second_factor }))
    }),

    'release-slug': command({ slug: TEXT }, async ({ slug }, env) => {
      if (!slug) fail('organization release-slug needs --slug SLUG')
      return changeOn(env, (database) => releaseFormerSlug(database, slug), 'Released.')
    })
  })
}

/**
 * Creates an organization, optionally with an owner. Throws a StartError, and creates nothing, if the account or the
 * plan does not exist, or if the owner has reached the limit of organizations.
 */
export async function addOrganization (
  { database, keyring }: Opened, { name, owner, plan }: { name: string, owner?: string | undefined, plan: string }
): Promise<{ id: string, slug: string }> {
  const id = ulid()
  const { written } = await changeThatCreates(database.db, operatorOf(id), {
    async load (db) {
      await findPlan(db, plan) ?? refuse(`There is no plan ${plan}`)
      const user = owner === undefined
        ? undefined
        : await findUserByEmail(db, owner) ?? refuse(`There is no account with ${owner}. Create it with \`user add\``)
      return { user, slug: await chooseSlug(db, 'organization', undefined, { name }) }
    },
    decide: ({ user, slug }) => ({
      async write (db, lockCounter) {
        const founded = await foundOrganization(db, keyring, { id, name, slug, plan }, lockCounter, user?.id)
        return typeof founded === 'number'
          ? refuse(`${owner} has reached the limit of ${founded} organizations as a member or owner`)
          : { slug, founded }
      },
      events: ({ founded }) => [...founded, eventOf('organization.create', id, { slug, plan })]
    })
  })
  return { id, slug: written.slug }
}

/**
 * Changes the plan, the status or the second-factor requirement of an organization. Throws a StartError when the
 * organization or the plan does not exist.
 */
export async function setOrganization (
  { db }: Database, idOrSlug: string,
  changes: Pick<Parameters<typeof updateOrganization>[2], 'plan' | 'status' | 'require_second_factor'>
): Promise<void> {
  const { plan, status } = changes
  if (plan !== undefined) await findPlan(db, plan) ?? refuse(`There is no plan ${plan}`)
  const none = `There is no organization ${idOrSlug}`
  const { id } = await findOrganization(db, idOrSlug) ?? refuse(none)
  const details = Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined))
  await change(db, operatorOf(id), {
    load: async (_db, counter) => counter.is_closed ? refuse(none) : counter.status,
    decide: (former) => ({
      async write (db) {
        if (status === 'active' && former !== 'active') await restartPeriods(db, id)
        await updateOrganization(db, id, changes)
      },
      events: [eventOf('organization.update', id, details)]
    })
  })
}

/**
 * Ends the reservation of an organization's former slug, so that another organization can take it. Throws a StartError
 * when the slug is not reserved.
 */
export async function releaseFormerSlug ({ db }: Database, slug: string): Promise<void> {
  const none = `The slug ${slug} is not reserved`
  const id = await findFormerSlug(db, slug) ?? refuse(none)
  await change(db, operatorOf(id), {
    decide: () => ({
      write: async (db) => await releaseSlug(db, id, slug) || refuse(none),
      events: [eventOf('organization.update', id, { released_slug: slug })]
    })
  })
}

async function * describeOrganizations ({ db }: Database): AsyncGenerator<string> {
  for await (const { id, slug, status, plan, name } of everyOrganization(db)) {
    yield rowOf(id, slug, status, plan.name, name)
  }
}
