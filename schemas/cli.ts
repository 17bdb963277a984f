import { Type } from '@sinclair/typebox'

/** The response to usage telemetry of command-line tools. The telemetry is discarded. */
export const TelemetryAnswer = Type.Object({ success: Type.Boolean() }, {
  title: 'TelemetryAnswer', examples: [{ success: true }]
})
