{{- define "packhorse.fullname" -}}
{{- if contains "packhorse" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-packhorse" (.Release.Name | trunc 30 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "packhorse.selector" -}}
app.kubernetes.io/name: packhorse
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "packhorse.labels" -}}
{{ include "packhorse.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The image of a name: (list $ "packhorse-gateway"). */}}
{{- define "packhorse.image" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}

{{- define "packhorse.secretName" -}}
{{- required "secretName: name a Secret with the keys admin-token, agent-token and link-secret" .Values.secretName -}}
{{- end -}}

{{- define "packhorse.scheme" -}}
{{- ternary "https" "http" (ne .Values.tls.secretName "") -}}
{{- end -}}

{{/* The admin listener for other pods. */}}
{{- define "packhorse.adminHost" -}}
{{ include "packhorse.fullname" . }}-admin.{{ .Release.Namespace }}.svc
{{- end -}}
{{- define "packhorse.adminUrl" -}}
{{ include "packhorse.scheme" . }}://{{ include "packhorse.adminHost" . }}:8081
{{- end -}}

{{/* The names by which other pods and the route's clients reach the inference listener. */}}
{{- define "packhorse.allowedHosts" -}}
{{- $name := include "packhorse.fullname" . -}}
{{- $names := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- if .Values.httpRoute.enabled }}{{ $names = concat $names .Values.httpRoute.hostnames }}{{ end -}}
{{- concat $names .Values.gateway.allowedHosts | join "," -}}
{{- end -}}

{{/* The user of the images, without rights. */}}
{{- define "packhorse.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- define "packhorse.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
