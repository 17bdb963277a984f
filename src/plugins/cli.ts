import { TelemetryAnswer } from '../../schemas/cli.ts'
import type { Domain } from '../http/routes/types.ts'

/** Usage telemetry of existing command-line tools. */
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
