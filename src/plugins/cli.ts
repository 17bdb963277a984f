import { TelemetryAnswer } from '../../schemas/cli.ts'
import type { Domain } from '../http/routes/types.ts'

/** Accepts and discards the usage telemetry that existing command-line tools send. */
export const cli: Domain = async (app) => {
  app.post('/cli/telemetry', {
    config: { access: 'public', audit: 'none' },
    schema: {
      operationId: 'sendTelemetry',
      tags: ['operations'],
      summary: 'Accept and discard usage telemetry of command-line tools',
      description: 'Tools that report their use work with it, and nothing is stored.',
      response: { 200: TelemetryAnswer }
    },
    handler: async () => ({ success: true })
  })
}
