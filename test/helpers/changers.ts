import postgres from 'postgres'
import { command } from './process.ts'
import { client, makeLevels, type Send } from './traffic.ts'

// The changes of one organization use at most two connections of a process. A test must therefore send changes of
// several organizations to occupy all connections.

/** The number of connections for writes in a server with `DATABASE_POOL` 6. */
export const WRITING = 4

/**
 * Creates as many organizations as a server has connections for writes, each with a project `orbit`. Returns a client
 * of each address for each organization.
 */
export async function makeChangers (env: Record<string, string>, addresses: string[]): Promise<Send[][]> {
  const changers: Send[][] = []
  for (let n = 0; n < WRITING; n++) {
    const made = await command(['organization', 'add', '--name', `Changer ${n}`], env)
    const [organization] = /\b[0-9A-HJKMNP-TV-Z]{26}\b/.exec(made.stdout) ?? []
    if (organization === undefined) throw new Error(made.stdout + made.stderr)
    const { stdout } = await command(['token', 'add', '--organization', organization, '--name', 'Changer'], env)
    const sends = addresses.map((address) => client(address, { organization, token: stdout.trim().split('\n').at(-1)! }))
    await makeLevels(sends[0]!, 'orbit', [])
    changers.push(sends)
  }
  return changers
}

/** Locks the counters of all organizations in another session, so that changes wait. */
export async function lockCounters (url: string) {
  const outside = postgres(url, { max: 2, onnotice: () => {} })
  const holder = await outside.reserve()
  await holder`BEGIN`
  await holder`SELECT FROM organization_counters ORDER BY organization_id FOR UPDATE`
  return {
    /** The number of connections of the service that wait for a lock. */
    waiting: async () => {
      const [row] = await outside`SELECT count(*)::int AS count FROM pg_stat_activity
        WHERE application_name = 'strongroom' AND wait_event_type = 'Lock'`
      return row!.count as number
    },
    release: async () => {
      await holder`ROLLBACK`
      holder.release()
      await outside.end()
    }
  }
}
