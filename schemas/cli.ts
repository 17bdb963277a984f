import { Type } from '@sinclair/typebox'

/** Tools that send how they are used are answered, and nothing of it is kept. */
export const TelemetryAnswer = Type.Object({ success: Type.Boolean() }, {
  title: 'TelemetryAnswer', examples: [{ success: true }]
})
