import type { Client } from '../../db/database.ts'
import { StartError } from '../common/command-errors.ts'
import { commandIn, runInService } from '../common/in-service.ts'
import { untilExit, type Environment } from '../common/noun.ts'
import type { Opened } from '../common/open.ts'
import { OPERATOR_NOUNS } from '../operator-nouns.ts'
import type { Log } from '../../telemetry/log.ts'

interface Service {
  opened: Opened
  env: Environment
  log: Pick<Log, 'info'>
}

/** Runs the commands of operators that arrive while the service has the embedded database open. */
export function createOperator () {
  let service: Service | undefined
  const running = new Set<Promise<number>>()
  const stopping = new AbortController()
  return {
    /**
     * Accepts commands from now on. Commands run with `env`, the environment of the service. `log` records the commands
     * that no audit log records; their arguments contain no secrets.
     */
    start (started: Service): void {
      service = started
    },
    /** Accepts no more commands, ends long commands at their next step, and waits until no command runs. */
    async stop (): Promise<void> {
      service = undefined
      stopping.abort(new StartError('The service stops: run the command again'))
      await Promise.allSettled(running)
    },
    /** Returns the exit status of a command; undefined for other requests. */
    async onRequest (request: Record<string, unknown>, client: Client): Promise<number | undefined> {
      const [name = '', ...args] = commandIn(request) ?? []
      const load = Object.hasOwn(OPERATOR_NOUNS, name) ? OPERATOR_NOUNS[name] : undefined
      if (load === undefined) return undefined
      if (service === undefined) throw new Error('it is starting or stopping: run the command again')
      const { opened, env, log } = service
      const mine = runInService(opened, client, stopping.signal, async () => {
        const { run, isOfInstallation } = await load()
        const status = await untilExit(() => run(args, env))
        if (isOfInstallation) log.info({ command: name, arguments: args, status }, 'operator command')
        return status
      })
      running.add(mine)
      return mine.finally(() => running.delete(mine))
    }
  }
}
