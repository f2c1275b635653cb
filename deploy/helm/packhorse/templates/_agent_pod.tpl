{{/* The pod of an agent: (list $ pool name). */}}
{{- define "packhorse.agentPod" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $full := include "packhorse.fullname" $root -}}
{{- $gpus := $pool.gpus | default 0 | int -}}
{{- $image := include "packhorse.image" (list $root ($pool.image | default (ternary "packhorse-agent-cuda" "packhorse-agent-cpu" (gt $gpus 0)))) -}}
{{- $drain := $root.Values.drain -}}
{{- $tlsCa := and $root.Values.tls.secretName $root.Values.tls.caKey -}}
serviceAccountName: {{ $full }}
automountServiceAccountToken: false
# The variables that Kubernetes makes of a Service's name begin like the agent's own.
enableServiceLinks: false
# Longer than the drain, and than the time limit of a batch, which a stopping worker finishes.
terminationGracePeriodSeconds: {{ ternary (add $drain.deadlineSeconds 60) 30 (ne $drain.secretName "") }}
securityContext:
  {{- if $pool.workerUser }}
  # The agent is root with few rights, and its workers are the user packhorse-worker of the image.
  runAsUser: 0
  runAsGroup: 0
  seccompProfile: {type: RuntimeDefault}
  {{- else }}
  {{- include "packhorse.podSecurity" $root | nindent 2 }}
  {{- end }}
{{- if $pool.workerUser }}
initContainers:
  # A new emptyDir is writable for everybody, and workers could put other files into the agent's folders.
  - name: folders
    image: {{ $image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [sh, -ceu]
    args:
      - |
        chmod 0755 /var/lib/packhorse-agent
        chmod 1777 /tmp {{ if gt $gpus 0 }}/dev/shm{{ end }}
    securityContext: {{- include "packhorse.containerSecurity" $root | nindent 6 }}
    volumeMounts:
      - {name: state, mountPath: /var/lib/packhorse-agent}
      - {name: tmp, mountPath: /tmp}
      {{- if gt $gpus 0 }}
      - {name: shm, mountPath: /dev/shm}
      {{- end }}
  {{- if $drain.secretName }}
  # The pod of this name before was drained, and nothing is placed on a drained node.
  - name: uncordon
    image: {{ $image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [sh, -ceu]
    args:
      - |
        nodes=$(packhorse node list --json)
        case $nodes in *"\"$PACKHORSE_NODE\""*) packhorse node uncordon "$PACKHORSE_NODE" ;; esac
    env: {{- include "packhorse.agentEnv" . | nindent 6 }}
    securityContext: {{- include "packhorse.containerSecurity" $root | nindent 6 }}
    volumeMounts:
      - {name: secrets, mountPath: /run/secrets/packhorse, readOnly: true}
  {{- end }}
{{- end }}
containers:
  - name: agent
    image: {{ $image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    securityContext:
      {{- include "packhorse.containerSecurity" $root | nindent 6 }}
      {{- if $pool.workerUser }}
        add: [CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SYS_PTRACE]
      {{- end }}
    env:
      {{- include "packhorse.agentEnv" . | nindent 6 }}
      - {name: PACKHORSE_AGENT_STATE_DIR, value: /var/lib/packhorse-agent/state}
      - name: PACKHORSE_LISTEN_ADDRESS
        valueFrom: {fieldRef: {fieldPath: status.podIP}}
      {{- with $pool.devices }}
      - {name: PACKHORSE_DEVICES, value: {{ . | quote }}}
      {{- end }}
      {{- with $pool.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- if $drain.secretName }}
    lifecycle:
      preStop:
        exec:
          command: [sh, -c, 'exec packhorse node drain "$PACKHORSE_NODE" --yes --wait --deadline {{ $drain.deadlineSeconds }}s']
    {{- end }}
    {{- $resources := deepCopy ($pool.resources | default dict) }}
    {{- if gt $gpus 0 }}
    {{- $limits := merge (dict ($pool.gpuResource | default "nvidia.com/gpu") $gpus) ($resources.limits | default dict) }}
    {{- $_ := set $resources "limits" $limits }}
    {{- end }}
    resources: {{- toYaml $resources | nindent 6 }}
    volumeMounts:
      - {name: state, mountPath: /var/lib/packhorse-agent}
      - {name: tmp, mountPath: /tmp}
      - {name: secrets, mountPath: /run/secrets/packhorse, readOnly: true}
      {{- if gt $gpus 0 }}
      - {name: shm, mountPath: /dev/shm}
      {{- end }}
volumes:
  # Model files, workers, and the folders of the MPS daemons: one for each GPU, which no other container of the node knows.
  - name: state
    emptyDir: {sizeLimit: {{ $pool.stateSize | default "50Gi" }}}
  - name: tmp
    emptyDir: {}
  {{- if gt $gpus 0 }}
  # A container's own has 64 MiB. Daemon, workers and clients of MPS are in one container, so that the node's IPC is not needed.
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ $pool.shmSize | default "1Gi" }}}
  {{- end }}
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
        - secret:
            name: {{ include "packhorse.secretName" $root }}
            items:
              - {key: agent-token, path: agent-token}
              - {key: link-secret, path: link-secret}
        {{- if $tlsCa }}
        - secret:
            name: {{ $root.Values.tls.secretName }}
            items:
              - {key: {{ $root.Values.tls.caKey | quote }}, path: ca.crt}
        {{- end }}
        {{- if $drain.secretName }}
        - secret:
            name: {{ $drain.secretName }}
            items:
              - {key: admin-key, path: admin-key}
        {{- end }}
{{- with $pool.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pool.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pool.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pool.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $pool.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* What the agent and the command in its pod are told: (list $ pool name). */}}
{{- define "packhorse.agentEnv" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
- name: PACKHORSE_NODE
  valueFrom: {fieldRef: {fieldPath: {{ ternary "spec.nodeName" "metadata.name" (eq $pool.kind "DaemonSet") }}}}
- {name: PACKHORSE_GATEWAY, value: {{ include "packhorse.adminUrl" $root | quote }}}
- {name: PACKHORSE_AGENT_TOKEN_FILE, value: /run/secrets/packhorse/agent-token}
- {name: PACKHORSE_LINK_SECRET_FILE, value: /run/secrets/packhorse/link-secret}
{{- if and $root.Values.tls.secretName $root.Values.tls.caKey }}
- {name: PACKHORSE_CA_FILE, value: /run/secrets/packhorse/ca.crt}
{{- end }}
{{- if $root.Values.drain.secretName }}
# Of the command.
- {name: PACKHORSE_ADMIN_URL, value: {{ include "packhorse.adminUrl" $root | quote }}}
- {name: PACKHORSE_TOKEN_FILE, value: /run/secrets/packhorse/admin-key}
{{- end }}
{{- end -}}
