import { FORMER_SLUG_DAYS, ORGANIZATION_STATUSES, type OrganizationStatus } from '../../../schemas/organizations.ts'
import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { isEmail } from '../../rules/formats/emails.ts'
import { addOrganization, describeOrganizations, releaseFormerSlug, setOrganization } from './organizations.ts'
import { write } from '../common/output.ts'
import { change, listing, verbs, withOpened, type Noun } from '../common/noun.ts'
import { isName, parse, TEXT, UsageError } from '../common/words.ts'

/** `organization` command. */
export const noun: Noun = {
  help: `  organization add --name NAME [--owner EMAIL] [--plan NAME]
                                          create an organization; the owner must have an account
  organization list                       list every organization: id, slug, status, plan, name
  organization set --id ID [--plan NAME] [--status STATUS] [--require-second-factor yes|no]
                                          change an organization, by its id or slug
  organization release-slug --slug SLUG   release the former slug of an organization before ${FORMER_SLUG_DAYS} days
`,

  run: verbs('organization', {
    add: async (args, env) => {
      const { name, owner, plan } = parse(args, { name: TEXT, owner: TEXT, plan: TEXT })
      if (!isName(name)) {
        throw new UsageError(`organization add needs --name NAME (at most ${NAME_LENGTH} characters)`)
      }
      if (owner !== undefined && !isEmail(owner)) throw new UsageError('--owner must be an e-mail address')
      return withOpened(env, async (opened, config) => {
        const made = await addOrganization(opened, { name: name.trim(), owner, plan: plan ?? config.defaultPlan })
        await write(`Organization ${made.id} (${made.slug})\n`)
      })
    },

    list: listing(describeOrganizations),

    set: async (args, env) => {
      const { id, plan, status, 'require-second-factor': required } = parse(args, {
        id: TEXT, plan: TEXT, status: TEXT, 'require-second-factor': TEXT
      })
      if (!id) throw new UsageError('organization set needs --id ID')
      if (plan === undefined && status === undefined && required === undefined) {
        throw new UsageError('organization set needs --plan, --status or --require-second-factor')
      }
      if (required !== undefined && required !== 'yes' && required !== 'no') {
        throw new UsageError('--require-second-factor must be yes or no')
      }
      const require_second_factor = required === undefined ? undefined : required === 'yes'
      if (status !== undefined && !(ORGANIZATION_STATUSES as readonly string[]).includes(status)) {
        throw new UsageError(`--status must be one of ${ORGANIZATION_STATUSES.join(', ')}`)
      }
      const changes = { plan, status: status as OrganizationStatus | undefined, require_second_factor }
      return change(env, (database) => setOrganization(database, id, changes))
    },

    'release-slug': async (args, env) => {
      const { slug } = parse(args, { slug: TEXT })
      if (!slug) throw new UsageError('organization release-slug needs --slug SLUG')
      return change(env, (database) => releaseFormerSlug(database, slug), 'Released.')
    }
  })
}
