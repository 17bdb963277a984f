import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { ROLES, type Role } from '../../../schemas/users.ts'
import { httpAddress, type Config } from '../../config.ts'
import { hashToken, mintSecret } from '../../crypto/bearer.ts'
import { transaction } from '../../changes/transaction.ts'
import type { Database, Db } from '../../db/database.ts'
import { endingOf, type EndedTokens } from '../../db/callers/grants.ts'
import { createMailer } from '../../mail/mailer.ts'
import { invitation, newLink, type Message } from '../../mail/messages.ts'
import { change } from '../../changes/change.ts'
import { recordOfPerson } from '../../changes/late.ts'
import { eventOf, operatorOf } from '../../repositories/audit/audit.ts'
import { MAX_ENDED } from '../../repositories/people/invitations.ts'
import { countOtherOwners, listOrganizationsOf } from '../../repositories/people/members.ts'
import { findOrganization } from '../../repositories/levels/organizations.ts'
import { createPersonalEvent } from '../../repositories/people/personal-events.ts'
import { findFull } from '../../repositories/billing/plans.ts'
import { deleteFactor } from '../../repositories/people/second-factors.ts'
import { deleteSessions } from '../../repositories/people/sessions.ts'
import { listTokensOfPerson } from '../../repositories/people/tokens.ts'
import {
  createPasswordLink, createMember, createUser, findAccount, findUserByEmail, listMemberships, listUsers, lockUser,
  setDisabled,
  type User
} from '../../repositories/people/users.ts'
import { canonicalRole } from '../../rules/roles.ts'
import { endInvitationsEverywhere } from '../../vault/memberships.ts'
import { changeOn, command, listing, print, verbs, withOpened, type Environment, type Noun } from '../common/noun.ts'
import { refuse } from '../common/command-errors.ts'
import { allRows, rowOf, warn, write } from '../common/stdio.ts'
import { choiceOf, emailOf, fail, FLAG, nameOf, TEXT } from '../common/words.ts'
import { lineOfToken } from './tokens.ts'

export const noun: Noun = {
  help: `  user add --email ADDRESS [--name NAME] [--organization ID --role ROLE] [--json]
                                          create an account and a link to set its password
  user password --email ADDRESS [--json]  create a new link to set the password
  user disable --email ADDRESS            disable an account and revoke its sessions, tokens and links
  user enable --email ADDRESS             enable an account again
  user reset-second-factor --email ADDRESS
                                          remove a lost second factor and end all sessions of the user
  user tokens --email ADDRESS             list the API tokens that a user created, in all organizations
  user list                               list every account: id, address, state, roles
`,

  run: verbs('user', {
    add: command({ email: TEXT, name: TEXT, organization: TEXT, role: TEXT, json: FLAG }, async (given, env) => {
      const email = emailOf('user add needs --email', given.email)
      const name = given.name === undefined
        ? email.split('@')[0]!.slice(0, NAME_LENGTH)
        : nameOf('user add: --name needs', given.name)
      const { organization, role: text } = given
      const role = text === undefined
        ? undefined
        : choiceOf('--role', ROLES, canonicalRole<string>(text))
      if ((organization === undefined) !== (role === undefined)) {
        fail('--organization and --role must be given together')
      }
      const membership = organization === undefined || role === undefined ? undefined : { organization, role }
      return printLink(env, given.json, (database, service) => addUser(database, service, { email, name, membership }))
    }),

    password: command({ email: TEXT, json: FLAG }, async ({ email: text, json }, env) => {
      const email = emailOf('user password needs --email', text)
      return printLink(env, json, (database, service) => renewLink(database, service, email))
    }),

    disable: switching('disable'),
    enable: switching('enable'),

    'reset-second-factor': command({ email: TEXT }, async ({ email: text }, env) => {
      const email = emailOf('user reset-second-factor needs --email', text)
      return changeOn(env, (database) => resetSecondFactor(database, email))
    }),

    tokens: command({ email: TEXT }, async ({ email: text }, env) => {
      const email = emailOf('user tokens needs --email', text)
      return print(env, (database) => describeTokens(database, email))
    }),

    list: listing(describeUsers)
  })
}

// Prints the link before sending the e-mail, so that the operator gets the link even if the mail server fails.
async function printLink (
  env: Environment, json: boolean | undefined, make: (database: Database, service: string) => Promise<Linked>
): Promise<number> {
  return withOpened(env, async ({ database }, config) => {
    const made = await make(database, serviceAddress(config))
    const { user: { id, email }, link } = made
    await write(json
      ? `${JSON.stringify({ user: { id: String(id), email }, link })}\n`
      : `User ${id} (${email})\nLink ${link}\n`)
    if (config.smtp === undefined) {
      if (!json) await write('Mail is not configured (SMTP_URL): give the link to the person yourself. It works once, within three days.\n')
      return
    }
    const isMailed = await mailLink(config, made, warn)
    if (isMailed && !json) await write('The link was sent by e-mail.\n')
  })
}

function switching (verb: 'disable' | 'enable') {
  return command({ email: TEXT }, async ({ email: text }, env) => {
    const email = emailOf(`user ${verb} needs --email`, text)
    return changeOn(env, async (database) => {
      const ownerless = await switchUser(database, email, verb === 'disable')
      return ['Changed.', ...ownerless.map((slug) =>
        `${slug} has no active owner now. Enable the account again, or add another owner: ` +
        `user add --email ADDRESS --organization ${slug} --role owner`)].join('\n')
    })
  })
}

/** A user with a one-time link to set the password (valid for three days), and the e-mail with the link. */
export interface Linked { user: { id: number, email: string }, link: string, message: Message }

export interface NewUser { email: string, name: string, membership?: { organization: string, role: Role } | undefined }

/**
 * The base URL for links. Throws a StartError if PUBLIC_URL is not set and PORT is 0, because only the running service
 * knows its port.
 */
export function serviceAddress ({ publicUrl, host, port }: Pick<Config, 'publicUrl' | 'host' | 'port'>): string {
  if (publicUrl !== undefined) return publicUrl
  if (port === 0) refuse('PORT is 0, so the address for the link is unknown: set PUBLIC_URL')
  return httpAddress(host, port)
}

/**
 * Creates an account without a password, and a link to set the password. Throws a StartError, and creates nothing, if
 * the address is in use, the organization does not exist or its member limit is reached.
 */
export async function addUser (
  { db: handle }: Database, service: string, { email, name, membership }: NewUser
): Promise<Linked> {
  const secret = mintSecret()
  const link = linkOf(service, secret)
  async function create (db: Db): Promise<number> {
    const id = await createUser(db, { email, name, password_hash: null }) ??
      refuse(`An account with ${email} already exists`)
    await createPasswordLink(db, hashToken(secret), id)
    await createEventForOperator(db, id, 'user.create')
    return id
  }
  const linked = (id: number, organization?: { name: string, role: Role }): Linked =>
    ({ user: { id, email }, link, message: invitation({ name, email, service, link, organization }) })
  if (membership === undefined) return linked(await transaction(handle, create))
  const { organization: idOrSlug, role } = membership
  const none = `There is no organization ${idOrSlug}`
  const organization = await findOrganization(handle, idOrSlug) ?? refuse(none)
  const { written: id } = await change(handle, operatorOf(organization.id), {
    load: async (db, { is_closed, plan }) => is_closed ? refuse(none) : findFull(db, organization.id, plan, 'members'),
    decide (full) {
      if (full !== undefined) {
        refuse(`The plan ${full.plan} of ${idOrSlug} is limited to ${full.limit} members: change it with \`organization set --plan\``)
      }
      return {
        async write (db) {
          const id = await create(db)
          await createMember(db, { organization_id: organization.id, user_id: id, role })
          return id
        },
        events: (id) => [eventOf('member.create', id, { role, status: 'active' }), eventOf('user.create', id)]
      }
    }
  })
  return linked(id, { name: organization.name, role })
}

/**
 * Creates a new link for a user and invalidates the previous link. The old password is valid until the link is used.
 * Throws a StartError if the account does not exist or is disabled.
 */
export async function renewLink ({ db: handle }: Database, service: string, email: string): Promise<Linked> {
  const secret = mintSecret()
  const link = linkOf(service, secret)
  return transaction(handle, async (db) => {
    const user = await userOf(db, email)
    if (user.disabled_at !== null) refuse(`The account with ${user.email} is disabled: enable it with \`user enable\` first`)
    await createPasswordLink(db, hashToken(secret), user.id)
    await recordForOperator(db, user.id, 'user.password')
    return {
      user: { id: user.id, email: user.email },
      link,
      message: newLink({ name: user.name, email: user.email, service, link })
    }
  })
}

/** Sends the link by e-mail. On failure, logs one line and returns false. */
export async function mailLink (
  config: Config, { user, message }: Linked, log: (line: string) => void
): Promise<boolean> {
  return createMailer(config, log).send({ about: `user ${user.id}`, to: user.email, ...message })
}

/**
 * Disables or enables an account. Either change revokes its sessions, tokens, grants and links. Throws a StartError if
 * the account does not exist, or if the MAC of an account to enable does not verify. Returns the slugs of organizations
 * that have no active owner after the change.
 */
export async function switchUser ({ db: handle }: Database, email: string, disabled: boolean): Promise<string[]> {
  const id = await transaction(handle, async (db) => {
    const id = await findAccount(db, email) ?? refuse(`There is no account with ${email}`)
    const ended = await setDisabled(db, id, disabled) ??
      refuse(`The account with ${email} was changed outside the service: restore it from a backup`)
    await recordForOperator(db, id, disabled ? 'user.disable' : 'user.enable', ended)
    return id
  })
  while (await endMoreInvitations(handle, id));
  // Check after the commit, because concurrent commands that disable two owners see each other's change only then.
  return disabled ? findSoleOwnerships(handle, id) : []
}

/**
 * Removes a user's lost second factor and ends their sessions. The password alone is sufficient until the user sets up
 * another factor. Throws a StartError when the account or the factor does not exist.
 */
export async function resetSecondFactor ({ db: handle }: Database, email: string): Promise<void> {
  await transaction(handle, async (db) => {
    const { id } = await userOf(db, email)
    await lockUser(db, id)
    const { email: address, second_factor_id } = await userOf(db, email)
    if (second_factor_id === null) refuse(`The account with ${address} has no second factor`)
    if (!await deleteFactor(db, id)) refuse(`The account with ${address} was changed outside the service`)
    await deleteSessions(db, id)
    await recordForOperator(db, id, 'second-factor.disable')
  })
}

export async function * describeUsers ({ db }: Database): AsyncGenerator<string> {
  for await (const user of allRows((after) => listUsers(db, after), 0, ({ id }) => id)) {
    const roles = (await listMemberships(db, user.id)).map(({ slug, role }) => `${slug}:${role}`)
    const state = user.disabled_at !== null ? 'disabled' : user.has_password ? 'active' : 'invited'
    yield rowOf(user.id, user.email, state, roles.join(' ') || '-')
  }
}

/** Yields a line for each live API token that was created by a user or by a token of the user. */
export async function * describeTokens ({ db }: Database, email: string): AsyncGenerator<string> {
  const { id } = await userOf(db, email)
  for (let page = 1, isLast = false; !isLast; page++) {
    const held = await listTokensOfPerson(db, id, page)
    yield * held.rows.map((token) => lineOfToken(token.organization.slug, token))
    isLast = held.isLast
  }
}

async function findSoleOwnerships (db: Db, userId: number): Promise<string[]> {
  const slugs: string[] = []
  for (const { id, slug, role } of await listMemberships(db, userId)) {
    if (role === 'owner' && await countOtherOwners(db, id, userId) === 0) slugs.push(slug)
  }
  return slugs
}

const linkOf = (service: string, secret: string) => `${service}/account/set-password/${secret}`

const userOf = async (db: Db, email: string): Promise<User> =>
  await findUserByEmail(db, email) ?? refuse(`There is no account with ${email}`)

type OperatorAction = 'user.create' | 'user.password' | 'user.disable' | 'user.enable' | 'second-factor.disable'

const createEventForOperator = (db: Db, user_id: number, action: OperatorAction) =>
  createPersonalEvent(db, { user_id, action, actor_type: 'operator', ip: null, user_agent: null, details: null })

async function recordForOperator (
  db: Db, userId: number, action: Exclude<OperatorAction, 'user.create'>, ended: readonly EndedTokens[] = []
): Promise<void> {
  await createEventForOperator(db, userId, action)
  const organizations = await listOrganizationsOf(db, userId)
  // Also when the account is enabled again, so that no invitation of before becomes valid again.
  const effects = action === 'user.disable' || action === 'user.enable'
    ? await endInvitationsEverywhere(db, [...organizations, ...ended.map((one) => one.organization_id)], userId)
    : []
  const actors = organizations.map(operatorOf)
  await recordOfPerson(db, actors, (organizationId) => ({
    action,
    resource_type: 'user',
    resource_id: String(userId),
    ...(ended.length > 0 && { details: endingOf(ended, organizationId) })
  }), { effects })
}

// Ends the invitations that are left of an account that was disabled or enabled, in a transaction of its own. Returns
// whether more may be left.
async function endMoreInvitations (handle: Db, userId: number): Promise<boolean> {
  return transaction(handle, async (db) => {
    const effects = await endInvitationsEverywhere(db, await listOrganizationsOf(db, userId), userId)
    await recordOfPerson(db, [], eventOf('user.disable', userId), { effects })
    return effects.length === MAX_ENDED
  })
}
