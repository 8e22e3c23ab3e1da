{{- define "powerprof.name" -}}
{{- .Values.name | default .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "powerprof.labels" -}}
app.kubernetes.io/name: powerprof
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "powerprof.selector" -}}
app.kubernetes.io/name: powerprof
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "powerprof.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "powerprof.name" .) -}}
{{- end -}}

{{/* The name in the certificates of all nodes. */}}
{{- define "powerprof.host" -}}
{{ include "powerprof.name" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Whether the secret with web.yml comes from the user. */}}
{{- define "powerprof.webSecret" -}}
{{- if and (eq .Values.scheme "https") (eq .Values.tls.source "secret") -}}
{{- required "web.existingSecret names the secret with web.yml" .Values.web.existingSecret -}}
{{- else -}}
{{- include "powerprof.name" . }}-web
{{- end -}}
{{- end -}}

{{- define "powerprof.hasWeb" -}}
{{- if or (eq .Values.scheme "https") .Values.web.users }}yes{{ end -}}
{{- end -}}
