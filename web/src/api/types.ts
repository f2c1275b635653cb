/** The messages of the API by their names, from the generated schema. */
import type { components } from "./schema";

type Schemas = components["schemas"];

export type AuditEntry = Schemas["AuditEntry"];
export type Consequence = Schemas["Consequence"];
export type Consequences = Schemas["Consequences"];
export type DeviceView = Schemas["DeviceView"];
export type EventView = Schemas["EventView"];
export type Finding = Schemas["Finding"];
export type ForecastView = Schemas["ForecastView"];
export type GoodputView = Schemas["GoodputView"];
export type ModelChange = Schemas["ModelChange"];
export type FamilyGoodput = Schemas["FamilyGoodput"];
export type ModelGoodput = Schemas["ModelGoodput"];
export type ModelRegistration = Schemas["ModelRegistration"];
export type ModelView = Schemas["ModelView"];
export type NodeView = Schemas["NodeView"];
export type PlacementView = Schemas["PlacementView"];
export type PlanDiff = Schemas["PlanDiff"];
export type PlanPreview = Schemas["PlanPreview"];
export type PlanPreviewRequest = Schemas["PlanPreviewRequest"];
export type PlanSummary = Schemas["PlanSummary"];
export type PlanView = Schemas["PlanView"];
export type PolicyChange = Schemas["PolicyChange"];
export type PolicyView = Schemas["PolicyView"];
export type RateMode = Schemas["RateMode"];
export type ReplicaView = Schemas["ReplicaView"];
export type RequestStages = Schemas["RequestStages"];
export type RequestView = Schemas["RequestView"];
export type SessionRequest = Schemas["SessionRequest"];
export type SessionView = Schemas["SessionView"];
export type Snapshot = Schemas["Snapshot"];
export type Subject = Schemas["Subject"];
export type TensorSpec = Schemas["TensorSpec"];
export type TotalGoodput = Schemas["TotalGoodput"];
export type TryView = Schemas["TryView_Value"];
