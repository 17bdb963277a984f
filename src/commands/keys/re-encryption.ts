import { setTimeout as sleep } from 'node:timers/promises'
import { findLevel } from '../../repositories/levels/levels.ts'
import { findOrganization } from '../../repositories/levels/organizations.ts'
import { findReEncryption, type Progress as ReEncryption } from '../../repositories/secrets/re-encryption.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { refuse } from '../common/command-errors.ts'
import { openedByService } from '../common/in-service.ts'
import { command, verbs, withOpened, type Noun } from '../common/noun.ts'
import type { Opened } from '../common/open.ts'
import { withProgress } from '../common/progress.ts'
import { write, writeJson, type Progress } from '../common/stdio.ts'
import { fail, FLAG, TEXT } from '../common/words.ts'

const NAME = 're-encryption'
const POLL_INTERVAL_MS = 1_000

interface Place { organization: string, project: string }

/** The state of a re-encryption, with fields of `re_encryption` in the key history of the API. */
type State = Pick<ReEncryption, 'total' | 'moved' | 'unreadable'> & { state: 'running' | 'done' }

export const noun: Noun = {
  help: `  project re-encryption --organization ID --project SLUG [--json]
                                          wait until the history of a project is re-encrypted; with --json, print the
                                          progress and do not wait
`,

  run: verbs('project', {
    [NAME]: command({ organization: TEXT, project: TEXT, json: FLAG }, async ({ organization, project, json }, env) => {
      if (!organization || !project) return fail(`project ${NAME} needs --organization ID and --project SLUG`)
      const place = { organization, project }
      return json
        ? withOpened(env, async (opened) => writeJson(await stateOf(opened, place)))
        : withProgress({ left: 'The re-encryption continues in the service.' }, (progress) =>
          withOpened(env, (opened) => wait(opened, place, progress)))
    })
  })
}

async function wait (opened: Opened, place: Place, progress: Progress): Promise<number> {
  const isAlone = opened.database.kind !== 'postgres' && openedByService() === undefined
  let before: State | undefined
  for (;;) {
    const now = await stateOf(opened, place)
    if (now.state === 'running' && isAlone) {
      refuse('The service re-encrypts the history, and does not run: start the service')
    }
    // A further rotation adds versions to the total, so a new step begins.
    if (now.total !== before?.total) {
      progress.begin('Re-encrypting', 'versions', now.total)
      before = undefined
    }
    progress.advance(now.moved - (before?.moved ?? 0))
    if (now.state === 'done') {
      await write(`${counted(now.moved, 'version')} re-encrypted` +
        `${now.unreadable === 0 ? '' : `; ${counted(now.unreadable, 'version')} cannot be decrypted`}\n`)
      return now.unreadable === 0 ? 0 : 1
    }
    before = now
    await sleep(POLL_INTERVAL_MS, undefined, { signal: progress.signal })
  }
}

async function stateOf ({ database: { db } }: Opened, place: Place): Promise<State> {
  const { id } = await findOrganization(db, place.organization) ?? refuse(`There is no organization ${place.organization}`)
  const { project } = await findLevel(db, id, { project: place.project }, 'place') ??
    refuse(`The organization has no project ${place.project}`)
  if (project.encryption_type === 'client') refuse('The project is client-managed: its clients re-encrypt the history')
  const found = await findReEncryption(db, project) ?? refuse('No rotation of this project asked for a re-encryption')
  const { total, moved, unreadable, finished_at } = found
  return { state: finished_at === null ? 'running' : 'done', total, moved, unreadable }
}
